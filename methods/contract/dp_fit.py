"""Check that noise on the updates of a method protects the unit of `[dp]`, and make the mechanism of a release."""

from __future__ import annotations

from collections.abc import Iterable

from protofleet.methods.contract.base import Method
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.private_sums import SampleSums
from protofleet.protocol.privacy.mechanism import Mechanism, PrivacyBudget
from protofleet.protocol.settings.dp import DpSettings, PrivacyUnit
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.kinds import CONTROL, kind_in


def demand_dp_fit(
    dp: DpSettings, name: str, method: Method, rounds: int, coded: bool, summed: bool = False
) -> None:
    """Raise SettingsError if the updates of a run cannot have this differential privacy.

    `method` is the method for the settings of the run, `coded` says that its codec rounds, and `summed` that its
    updates are masked.
    """
    if coded:
        raise SettingsError(
            "dp and codec are both set, but a codec that rounds would change numbers with noise; leave codec out"
        )
    asks_once = method.Server.keeps_answers and not summed
    if not asks_once and dp.rounds < rounds:
        raise SettingsError(
            f"dp.rounds is {dp.rounds}, but the run has {rounds} rounds, and each is a release; raise dp.rounds to "
            f"at least {rounds}, which makes the noise larger, or lower rounds"
        )
    if problem := misfit(method, dp.unit):
        known = ", ".join(words_of_method(one, dp.unit) for one in names() if may_fit(load(one), dp.unit))
        raise SettingsError(
            f'dp.unit is "{dp.unit}", but {name} {problem}; leave dp out, or take one of the methods {known}'
        )


def may_fit(method: Method, unit: PrivacyUnit) -> bool:
    """Return whether a method can have this unit, perhaps with another setting."""
    return not misfit(method, unit) or (unit == "sample" and bool(method.sums_with))


def words_of_method(name: str, unit: PrivacyUnit) -> str:
    """Return the name of a method, with the setting that it needs for this unit."""
    method = load(name)
    return f"{name} (with {method.sums_with})" if misfit(method, unit) else name


def misfit(method: Method, unit: PrivacyUnit) -> str:
    """Return why noise on the updates of a method does not protect this unit, or "" if it does."""
    if unit == "sample" and method.sums is None and method.sums_with:
        return f"sends no sums over its samples; set {method.sums_with}"
    if unit == "sample" and method.sums is None:
        return (
            "has features that depend on the training samples, or sends no sums of features, so noise on its updates "
            "hides no sample"
        )
    if method.needs_counts and not method.sums_counts:
        return "sends the number of samples of each class without noise"
    if unit == "sample":
        return ""
    means = method.averaged.values()
    if not means or method.individual_phases:
        return "sends more than weights or rows of classes of which only the mean is used"
    if any(one.arrays and one.rows for one in means):
        return (
            "sends more than weights: rows of classes have another length than changes of weights, so one dp.clip "
            "cannot limit both"
        )
    if any(one.rows for one in means):
        return ""  # The device sends no figure of its own model, so the run has none.
    if method.reports != "global":
        return "reports the accuracy of the model that a device has trained, which is a release without noise"
    return ""


def released_kind(names: Iterable[str], phase: str) -> str:
    """Return the kind under which the ledger names an update with these arrays."""
    return kind_in(min((name for name in names if kind_in(name) != CONTROL), default=phase))


def mechanism_of(dp: DpSettings, numbers: int, sums: SampleSums | None = None, parties: int = 1) -> Mechanism:
    """Return the mechanism of a release of so many numbers; raise SettingsError if the budget allows none.

    `sums` are the sums of the method under `dp.unit = "sample"`. `parties` devices add the noise together.
    """
    clip = dp.clip if sums is None else sums.sensitivity
    try:
        multiplier = PrivacyBudget(dp.epsilon, dp.delta, dp.rounds).multiplier(numbers, parties)
        return Mechanism(dp.unit, clip, numbers, multiplier, parties)
    except ValueError as error:
        raise SettingsError(f"dp: {error}") from None
