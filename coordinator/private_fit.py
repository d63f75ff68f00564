"""Check that a run with `[dp]` does not need figures that its devices do not send."""

from __future__ import annotations

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.reader import SettingsError


def demand_dp_policy(policy: Policy, plan: Plan) -> None:
    """Raise SettingsError if the policy needs an accuracy, but devices would only have that of their own models."""
    if plan.dp is not None and policy.stop is not None and plan.variant.reports == "personal":
        raise SettingsError(
            f"policy.stop needs the validation accuracy of each device, but with dp, {plan.method} has only the "
            "accuracy of the model that a device has trained, which is not sent; leave policy.stop or dp out"
        )
