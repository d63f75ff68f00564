"""The ledger of a run with `[dp]`: each accepted update with noise, and what each device has given away with them.

A row is written in the transaction in which the update is accepted. An update that is accepted again, for example
after a crash, is the same bytes and the same row. Rows are never deleted: what was released stays released when a
round begins again, or when the run goes back to an earlier round. If the folder is restored from an older copy, rows
are missing; the ledger of the device counts then.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from protofleet.coordinator.spool.index import Index
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.dp_fit import mechanism_of, released_kind
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.parts.weights import weight_wants
from protofleet.protocol.privacy.accountant import Noise
from protofleet.protocol.privacy.ledger import PrivateRelease, release_of, spent_epsilon
from protofleet.protocol.settings.dp import DpSettings

# Table of a run with dp. Other runs do not have this table.
TABLE = "releases"
COLUMNS = "run, round, phase, attempt, kind, unit, sigma, sensitivity, numbers, delta"


class ReleaseLedger:
    def __init__(self, index: Index, plan: Plan, run: str) -> None:
        """Read the rows of earlier coordinators. The plan has `dp`."""
        assert plan.dp is not None, "only a run with dp has releases"
        self.dp: DpSettings = plan.dp
        self._index, self._plan, self._run = index, plan, run
        index.add_tables((TABLE,))
        # Device -> object of an update -> its release.
        self._by_device: dict[str, dict[bytes, PrivateRelease]] = {}
        self._epsilon: dict[str, float] = {}
        for device, name, *values in index.db.execute(f"SELECT device, object, {COLUMNS} FROM {TABLE}"):
            self._by_device.setdefault(device, {})[name] = PrivateRelease(*values)
        for device in self._by_device:
            self._count(device)

    def accepted(
        self, device: str, round: int, phase: str, name: bytes, wants: Mapping[str, TensorSpec],
        noise: Noise | None = None,
    ) -> None:  # fmt: skip
        """Write the release of an update; the transaction that accepts the update makes it durable.

        `noise` is given if the devices share their noise in a masked sum.
        """
        known = self._by_device.setdefault(device, {})
        if name in known:
            return
        kind = released_kind((array for array, spec in wants.items() if not spec.optional), phase)
        noise = noise or self._noise_of(wants)
        release = release_of(noise, self._run, round, phase, kind, self.dp.unit, known.values())
        known[name] = release
        self._count(device)
        row = (
            release.run, release.round, release.phase, release.attempt, release.kind, release.unit,
            release.sigma, release.sensitivity, release.numbers, release.delta,
        )  # fmt: skip
        self._index.defer(lambda: self._index.put(TABLE, device, name, *row))

    def _noise_of(self, wants: Mapping[str, TensorSpec]) -> Noise:
        sums = self._plan.sums
        numbers = numbers_in(wants) if sums is None else sums.numbers
        return mechanism_of(self.dp, numbers, sums).noise

    def _count(self, device: str) -> None:
        self._epsilon[device] = spent_epsilon(self._by_device[device].values(), self.dp.delta)

    @property
    def epsilon(self) -> Mapping[str, float]:
        """Return the epsilon that each device has given away so far in this run."""
        return self._epsilon

    def releases(self, device: str) -> list[PrivateRelease]:
        """Return the releases of a device that the coordinator has accepted."""
        return list(self._by_device.get(device, {}).values())


def released_numbers(plan: Plan) -> int:
    """Return the count of numbers in a release of all weights, of a row for each class, or of the method's sums.

    The plan has `dp`.
    """
    if (sums := plan.sums) is not None:
        return sums.numbers
    with torch.device("meta"):
        model = plan.model()
    if not any(one.rows for one in plan.variant.averaged.values()):
        return numbers_in(weight_wants(model))
    cost = plan.variant.cost
    return cost(Sizes(model, plan.classes)).up["prototypes"] if cost else plan.classes * model.embedding_size


def numbers_in(wants: Mapping[str, TensorSpec]) -> int:
    """Return the count of numbers that have noise; arrays of whole numbers have none."""
    total = 0
    for spec in wants.values():
        size = 1
        for dim in spec.shape:
            size *= spec.most if isinstance(dim, str) else dim
        total += size if spec.is_float else 0
    return total
