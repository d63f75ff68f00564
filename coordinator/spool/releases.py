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
from protofleet.methods.contract.dp_fit import mechanism_of
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.parts.weights import weight_wants
from protofleet.protocol.privacy.ledger import PrivateRelease, attempts, spent_epsilon
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.wire.kinds import kind_in

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
        self, device: str, round: int, phase: str, name: bytes, wants: Mapping[str, TensorSpec]
    ) -> None:
        """Write the release of an update; the transaction that accepts the update makes it durable."""
        known = self._by_device.setdefault(device, {})
        if name in known:
            return
        release = self._release(round, phase, wants, attempts(known.values(), self._run, round, phase) + 1)
        known[name] = release
        self._count(device)
        row = (
            release.run, release.round, release.phase, release.attempt, release.kind, release.unit,
            release.sigma, release.sensitivity, release.numbers, release.delta,
        )  # fmt: skip
        self._index.defer(lambda: self._index.put(TABLE, device, name, *row))

    def _release(
        self, round: int, phase: str, wants: Mapping[str, TensorSpec], attempt: int
    ) -> PrivateRelease:
        sums = self._plan.sums
        numbers = numbers_in(wants) if sums is None else sums.numbers
        noise = mechanism_of(self.dp, numbers, sums).noise
        kind = kind_in(min((name for name, spec in wants.items() if not spec.optional), default=phase))
        return PrivateRelease(
            self._run, round, phase, attempt, kind, self.dp.unit, noise.sigma, noise.sensitivity, noise.numbers,
            noise.distance,
        )  # fmt: skip

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
