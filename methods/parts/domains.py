"""Class prototypes by domain, which are kept and sent as rows [R, D], one for each (class, domain).

Each row has its class in `labels` and the id of its domain in `domains`. An id is a hash, so a device finds the rows
of its own domain although it does not know the names of the other domains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.base import Member, Payload, Reply
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import demand
from protofleet.methods.parts.prototypes import MOST_EXAMPLES, ROWS, row_specs, table_of
from protofleet.methods.parts.small_classes import ClassMeansHyper

# The kinds that METHOD declares for `rows_to_send`.
DOMAIN_ROWS: Final = (*ROWS, "domains")
Place: TypeAlias = tuple[int, int]  # A class and the id of a domain.


@dataclass(frozen=True)
class DomainsHyper(ClassMeansHyper):
    """The settings of methods that send class means by domain."""

    domains: tuple[str, ...] = ()
    """Names of the run's domains; a device of another domain is refused; empty means that devices may state any
    domain.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        twice = [name for name in self.domains if self.domains.count(name) > 1]
        demand("domains", self.domains, not twice and all(self.domains), "a list of different names")


@dataclass(frozen=True)
class DomainRows:
    rows: Tensor  # [R, D]
    labels: Tensor  # [R]
    domains: Tensor  # [R]


def domain_id(name: str) -> int:
    """Return a number of 63 bits that stands for the domain."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1


def rows_by_place(replies: Sequence[Reply], cohort: Sequence[Member], model: Net) -> dict[Place, Tensor]:
    """Return the devices' rows [K, D] of each class and domain, in the order of the devices' names.

    If a device sends several rows of a class, their mean counts as its row.
    """
    ids = {one.device: domain_id(one.domain or one.device) for one in cohort}
    found: dict[Place, list[Tensor]] = {}
    for reply in sorted(replies, key=lambda reply: reply.device):
        own, known = table_of(reply.payload, model)
        for label in known.nonzero().flatten().tolist():
            found.setdefault((label, ids[reply.device]), []).append(own[label])
    return {place: torch.stack(rows) for place, rows in found.items()}


def rows_to_send(table: Mapping[Place, Tensor]) -> dict[str, Tensor]:
    """Return the rows in the order of classes and then of ids, or nothing if there is no row."""
    if not table:
        return {}
    places = sorted(table)
    labels, domains = (torch.tensor(column, dtype=torch.int64) for column in zip(*places, strict=True))
    return {"prototypes": torch.stack([table[one] for one in places]), "labels": labels, "domains": domains}


def rows_received(payload: Payload, model: Net) -> DomainRows | None:
    """Return the rows of a broadcast or of a state, or None if there are none."""
    if not any(name in payload for name in DOMAIN_ROWS):
        return None
    ids = TensorSpec(("rows",), "int64", low=0, most=MOST_EXAMPLES)
    demand_arrays(payload, {**row_specs(model), "domains": ids})
    return DomainRows(*(payload[name].detach() for name in DOMAIN_ROWS))


def own_and_others(
    found: DomainRows | None, domain: str, model: Net
) -> tuple[tuple[Tensor, Tensor], DomainRows | None]:
    """Return the table [C, D] and the mask [C] of a domain's rows, and the rows of all other domains, if any."""
    if found is None:
        return table_of({}, model), None
    mine = found.domains == domain_id(domain)
    own = table_of({"prototypes": found.rows[mine], "labels": found.labels[mine]}, model)
    if mine.all():
        return own, None
    return own, DomainRows(found.rows[~mine], found.labels[~mine], found.domains[~mine])


def table_of_rows(found: DomainRows | None) -> dict[Place, Tensor]:
    if found is None:
        return {}
    places = zip(found.labels.tolist(), found.domains.tolist(), strict=True)
    return dict(zip(places, found.rows, strict=True))
