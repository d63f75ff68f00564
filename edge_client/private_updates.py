"""Add noise to an update, so that it gives away at most the epsilon of the run's `[dp]`.

The noise stands between the work of the method and the update. What the method has computed never leaves the
device: the arrays of the update are computed only from the numbers with noise, and from what the coordinator knows
already.

  device   The vector is the difference of all weights to the broadcast. Arrays of whole numbers, such as the number
           of batches of a batch norm, come back as the broadcast has them. Numbers stay in the bounds of the network.
           Rows of classes are a table with a row for every class; see `private_rows`.
  sample   The vector has the sums of the method over all samples.

The ledger names each release before its update is sent. It is in the same file, and is written in the same step. The
noise is part of the stored update: if the same task comes again, the same update is sent again. If an update is lost
with its file, the update that replaces it has other noise and is one more release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.contribution import VectorLayout, arrays_of_payload, layout_of
from protofleet.methods.contract.dp_fit import mechanism_of, released_kind
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.private_rows import ROWS, PrivateRows, rows_with_noise
from protofleet.methods.contract.private_sums import SUMS
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.parts.prototypes import LARGEST_NUMBER
from protofleet.methods.parts.weights import weight_wants
from protofleet.protocol.privacy.accountant import Noise
from protofleet.protocol.privacy.ledger import PrivateRelease, release_of, spent_epsilon
from protofleet.protocol.privacy.mechanism import Mechanism
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.kinds import kind_in
from protofleet.protocol.wire.messages import Array, Arrays

# The accountant rounds epsilon up, so the releases of a budget may seem to pass it by this share.
ROUNDING = 1e-9


@dataclass(frozen=True)
class PrivateUpdate:
    arrays: Arrays
    release: PrivateRelease


def demand_delta_fit(dp: DpSettings | None, samples: int) -> None:
    """Raise SettingsError if delta is so large that it allows to give away one whole sample of this device."""
    if dp is not None and dp.unit == "sample" and dp.delta * samples > 1:
        raise SettingsError(
            f"dp.delta is {dp.delta:g}, but this device has {samples} samples, so it must be at most "
            f"{1 / samples:.2g}; lower dp.delta"
        )


def demand_budget(dp: DpSettings, run: str, ledger: Sequence[PrivateRelease]) -> None:
    """Raise SettingsError if one more release like the last one would pass the budget of a run."""
    mine = [one for one in ledger if one.run == run]
    if mine and _passes(dp, [*mine, mine[-1]]):
        raise SettingsError(_used_up(dp, mine))


class PrivateUpdates:
    """The updates with noise of one run."""

    def __init__(self, plan: Plan, held: Sequence[int] = ()) -> None:
        """Set up the updates of a run with `dp`; `held` has the device's number of samples of each class."""
        assert plan.dp is not None, "only updates of a run with dp have noise"
        self.plan, self.dp = plan, plan.dp
        averaged = rows_with_noise(plan)
        own = np.array(held, np.int64)
        self._rows = PrivateRows(averaged, plan.classes, own) if averaged else None
        self._mechanisms: dict[int, Mechanism] = {}  # Count of numbers in a vector -> its mechanism.

    @cached_property
    def _bounds(self) -> Mapping[str, TensorSpec]:
        """Return the bounds of the run's weights; a running variance, for example, is never below 0."""
        with torch.device("meta"):
            return weight_wants(self.plan.model())

    def update(
        self, run: str, round: int, phase: str, payload: Arrays, broadcast: Arrays, samples: int,
        ledger: Sequence[PrivateRelease],
    ) -> PrivateUpdate:  # fmt: skip
        """Return the arrays of an update with noise, and the release that the ledger must name before they are sent.

        Raise SettingsError if the release would pass the budget of the run.
        """
        found, noise = self.noisy(payload, broadcast, samples)
        single = self._rows.averaged.single if self._rows else ()
        names = (name for name in found if name not in single)
        return PrivateUpdate(found, self.release(noise, run, round, phase, names, ledger))

    def release(
        self,
        noise: Noise,
        run: str,
        round: int,
        phase: str,
        names: Iterable[str],
        ledger: Sequence[PrivateRelease],
    ) -> PrivateRelease:
        """Return the next release of the ledger, or raise SettingsError if it would pass the budget of the run."""
        kind = released_kind(names, phase)
        release = release_of(noise, run, round, phase, kind, self.dp.unit, ledger)
        mine = [one for one in ledger if one.run == run]
        if _passes(self.dp, [*mine, release]):
            raise SettingsError(_used_up(self.dp, mine))
        return release

    def noisy(self, payload: Arrays, broadcast: Arrays, samples: int) -> tuple[Mapping[str, Array], Noise]:
        """Return the arrays of an update with new noise, and what the accountant must know about the noise."""
        if self.dp.unit == "sample":
            vector = sums_in(payload)
            mechanism = self._mechanism(len(vector))
            return self._arrays_of_sums(mechanism, vector, samples), mechanism.noise
        others: Mapping[str, Array] = {}
        if self._rows is not None:
            others = self._rows.other_arrays(payload)
            payload, broadcast = self._rows.tables(payload, broadcast)
        layout = layout_of_floats(payload)
        mechanism = self._mechanism(layout.length)
        released = mechanism.values(mechanism.release(layout.vector(payload, broadcast, 1, 1)))
        found = layout.mean(released, broadcast, [1], 1, self._specs(layout))
        return {**found, **whole_numbers(payload, broadcast), **others}, mechanism.noise

    def _specs(self, layout: VectorLayout) -> Mapping[str, TensorSpec]:
        """Return the bounds of the arrays; an array that the run's network does not have has none."""
        if self._rows is not None:
            (table,) = layout.places
            return {ROWS: _bounds_of_rows(table.shape, table.dtype)}
        return {
            place.name: self._bounds.get(place.name, TensorSpec(place.shape, place.dtype))
            for place in layout.places
        }

    def _mechanism(self, numbers: int) -> Mechanism:
        if numbers not in self._mechanisms:
            self._mechanisms[numbers] = mechanism_of(self.dp, numbers, self.plan.sums)
        return self._mechanisms[numbers]

    def _arrays_of_sums(
        self, mechanism: Mechanism, vector: NDArray[np.float64], samples: int
    ) -> Mapping[str, Array]:
        """Return the arrays of the update from the sums over the samples."""
        assert self.plan.sums is not None, "a plan for samples has sums"
        released = mechanism.values(mechanism.release(vector))
        return to_numpy(self.plan.sums.payload(torch.from_numpy(released), samples))


def _bounds_of_rows(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """Return the bounds of rows with noise, which are the widest bounds of a task."""
    return TensorSpec(shape, dtype, low=-LARGEST_NUMBER, high=LARGEST_NUMBER)


def _passes(dp: DpSettings, releases: Sequence[PrivateRelease]) -> bool:
    return spent_epsilon(releases, dp.delta) > dp.epsilon * (1 + ROUNDING)


def _used_up(dp: DpSettings, mine: Sequence[PrivateRelease]) -> str:
    spent = spent_epsilon(mine, dp.delta)
    return (
        f"the privacy budget of this device is used up: {len(mine)} releases have epsilon {spent:.4g}, and one more "
        f"would pass dp.epsilon = {dp.epsilon:g}; the run continues without this device"
    )


def sums_in(payload: Arrays) -> NDArray[np.float64]:
    """Return the vector of sums that the client half has made."""
    return np.asarray(payload[SUMS], np.float64)


def layout_of_floats(payload: Arrays) -> VectorLayout:
    """Return the places of all float arrays in the vector of an update, in which each device counts once."""
    floats = {name: payload[name] for name in payload if payload[name].dtype.kind == "f"}
    averaged = Averaged(tuple(sorted({kind_in(name) for name in floats})), by="devices")
    return layout_of(averaged, arrays_of_payload(floats), classes=0)


def whole_numbers(payload: Arrays, broadcast: Arrays) -> dict[str, Array]:
    """Return the arrays of whole numbers as the broadcast has them.

    Only names and types of `payload` are used. Raise SettingsError for an array that the broadcast lacks.
    """
    names = sorted(name for name in payload if payload[name].dtype.kind != "f")
    if lacking := [name for name in names if name not in broadcast]:
        raise SettingsError(
            f"dp is set, but the method sends {lacking[0]}, an array of whole numbers without noise"
        )
    return {name: np.asarray(broadcast[name]) for name in names}


def without_personal(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics without those of a model that this device has trained.

    The accuracy of such a model would be a release without noise. The accuracy of the run's model stays: it depends
    on the broadcast and on samples for testing, which the claim does not cover.
    """
    return {name: value for name, value in metrics.items() if not _is_personal(name)}


def _is_personal(name: str) -> bool:
    return name.rpartition(".")[2].startswith("personal")
