"""Check that the method and the mode of a run allow the rules of [policy.robust]."""

from __future__ import annotations

from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.round.robust import UNWEIGHTED
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import Ask, Method
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.reader import SettingsError


def demand_robust_fit(policy: Policy, plan: Plan) -> None:
    """Raise SettingsError if a rule of the policy has nothing to which it can be applied."""
    rules = policy.robust.rules if policy.robust else {}
    accepted = accepted_rules(plan.variant)
    for name, rule in rules.items():
        if name not in accepted:
            known = [one for one in names() if name in accepted_rules(load(one))]
            raise SettingsError(
                f'policy.robust.{name} is "{rule}", but {plan.method} averages no {name} over its devices, so no '
                f'rule can replace the mean; set {name} = "mean", or take one of {", ".join(known)}'
            )
        if policy.buffered and rule in UNWEIGHTED:
            raise SettingsError(
                f'policy.robust.{name} is "{rule}" with mode = "buffered", but in this rule each device counts once, '
                'so a late update could not count less; set mode = "synchronous", or take "clip_median" or "trimmed"'
            )


def accepted_rules(method: Method) -> frozenset[str]:
    """Return the settings of [policy.robust] that a method accepts."""
    arrays = any(one.arrays for one in method.averaged.values())
    rows = any(one.rows for one in method.averaged.values())
    return frozenset([*(["weights"] if arrays else []), *(["prototypes"] if rows else [])])


def demand_covered(method: str, averaged: Averaged, ask: Ask) -> None:
    """Raise SettingsError if a phase requests an array that its mean does not include."""
    if uncovered := averaged.uncovered(ask.wants):
        raise SettingsError(
            f"{method} declares Method(averaged={{{ask.phase!r}: ...}}), but this phase also requests "
            f"{uncovered[0]}, which is not averaged, so no rule can replace its mean; leave out policy.robust, or "
            "change the method"
        )
