"""The data of a device with an inbox: the samples of the device's share, followed by the inbox's listed samples."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofleet.edge_client.data.inbox.listing import InboxEntry, Listing, held_out
from protofleet.edge_client.data.inbox.samples import InboxSamples
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shard, TensorSamples, to_tensor
from protofleet.protocol.storage.disk import Disk

FILES, LABELS = "inbox.files", "inbox.labels"  # names of the arrays in a stored listing
FOLDER: Final = "inbox"  # folder in the device's own folder

Arrays = Mapping[str, NDArray[Any]]

log = logging.getLogger("protofleet.device")


def samples_of(settings: DataSettings, folder: Path, disk: Disk) -> InboxSamples:
    """Return the store of the inbox's samples; `folder` is the device's own folder."""
    return InboxSamples(folder / FOLDER, settings.input_shape, disk)


def as_arrays(listing: Listing) -> Arrays:
    names = b"".join(entry.sha256 for entry in listing)
    return {
        FILES: np.frombuffer(names, np.uint8).reshape(-1, 32),
        LABELS: np.array([entry.label for entry in listing], np.int64),
    }


def as_listing(arrays: Arrays) -> Listing:
    rows = zip(arrays[FILES], arrays[LABELS].tolist(), strict=True)
    return tuple(InboxEntry(row.tobytes(), int(label)) for row, label in rows)


def joined(base: Shard, listing: Listing, samples: InboxSamples, settings: DataSettings) -> Shard:
    """Return the device's own share, with the inbox's samples of the listing appended."""
    parts: dict[str, list[tuple[Tensor, int]]] = {"train": [], "validation": [], "test": []}
    kind = base.kind
    for entry in listing:
        if (values := samples.load(entry.sha256)) is None:
            log.error(
                "the inbox's sample %s is missing or damaged; the device works without it",
                entry.sha256.hex()[:12],
            )
            continue
        # An earlier version of protofleet may have stored this sample.
        if problem := kind.problem_with(values):
            log.error("the inbox's sample %s is left out: %s", entry.sha256.hex()[:12], problem)
            continue
        x = to_tensor(values[None], settings.input_shape, base.scale)
        parts[held_out(entry, settings.own_test, settings.validation)].append((x, entry.label))

    def more(part: TensorSamples, rows: list[tuple[Tensor, int]]) -> TensorSamples:
        if not rows:
            return part
        labels = torch.tensor([label for _, label in rows], dtype=torch.int64)
        return TensorSamples(torch.cat([part.x, *(x for x, _ in rows)]), torch.cat([part.y, labels]))

    return Shard(
        base.domain, base.classes, more(base.train, parts["train"]),
        more(base.validation, parts["validation"]), more(base.test, parts["test"]), base.names, base.scale,
        base.pixels,
    )  # fmt: skip
