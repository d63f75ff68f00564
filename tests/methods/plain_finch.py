"""FINCH as its paper describes it, in loops over lists of rows, and global prototypes made from the devices' rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.methods.tiny import Shard, shard

# FINCH always joins two or three rows; with eight devices some classes have more rows. device-3 first takes part
# in round 3.
LABELS = (
    (0, 1, 2) * 6,
    (0, 1) * 5,
    (0, 1, 2) * 4,
    (1,) * 6,
    (0, 2) * 6,
    (0, 1) * 4,
    (2, 0, 1) * 4,
    (0, 1) * 6,
)
MANY = {f"device-{i}": Shard(part.x.double(), part.y) for i, part in enumerate(map(shard, range(8), LABELS))}
ROUNDS = (
    ("device-0", "device-1", "device-2", "device-4", "device-5", "device-6", "device-7"),
    ("device-0", "device-1", "device-4", "device-5", "device-6", "device-7"),
    ("device-1", "device-3", "device-5", "device-7"),
    tuple(MANY),
)
# The same devices without the samples of class 2.
WITHOUT_2 = {name: Shard(part.x[part.y != 2], part.y[part.y != 2]) for name, part in MANY.items()}


def nearest_others(rows):
    """Return for each row the index of the nearest other row by cosine; of equal rows, the first."""
    units = F.normalize(torch.stack([*rows]), dim=1)
    cosines = (units @ units.T).fill_diagonal_(-2.0).tolist()
    return [max(range(len(row)), key=lambda j: (round(row[j], 12), -j)) for row in cosines]


def joined_with_nearest(rows):
    """Join each row with its nearest row and return the connected sets, in the order of their first members."""
    groups = [{i} for i in range(len(rows))]
    for linked in map(set, enumerate(nearest_others(rows))):
        touched = [group for group in groups if group & linked]
        groups = [group for group in groups if not group & linked] + [set.union(*touched)]
    return sorted(groups, key=min)


def finch(rows):
    """Return the sets of rows of the coarsest level with two or more sets, or a first level with only one set."""
    if len(rows) < 2:
        return [{0}] if len(rows) else []
    kept = joined_with_nearest(rows)
    while len(kept) > 1:
        means = [torch.stack([rows[i] for i in sorted(group)]).mean(0) for group in kept]
        coarser = [set.union(*(kept[i] for i in group)) for group in joined_with_nearest(means)]
        if len(coarser) in (1, len(kept)):
            break
        kept = coarser
    return sorted(kept, key=min)


def cluster_means(rows):
    return [torch.stack([rows[i] for i in sorted(group)]).mean(0) for group in finch(rows)]


def global_prototypes(sent, before):
    """Return {class: rows} from the rows that devices sent; a class that no device sent keeps its earlier rows."""
    found = dict(before)
    for label in {label for table in sent for label in table}:
        found[label] = cluster_means([row for table in sent for row in table.get(label, [])])
    return found
