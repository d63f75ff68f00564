"""Check that the method and the codec of a run allow buffered rounds (policy.mode)."""

from __future__ import annotations

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.reader import SettingsError


def demand_buffered_fit(policy: Policy, plan: Plan) -> None:
    """Raise SettingsError if the policy has buffered rounds, but a late update of this plan cannot count."""
    if not policy.buffered:
        return
    if not plan.variant.buffered:
        known = ", ".join(name for name in names() if load(name).buffered)
        raise SettingsError(
            f'policy.mode is "buffered", but {plan.method} does not declare Method(buffered=True): one phase, '
            "and a server step that is a mean in which a late update can count less. Set mode = "
            f'"synchronous", or take one of {known}'
        )
    if plan.dp is not None:
        raise SettingsError(
            'policy.mode is "buffered", but dp is set: a device would not know for which round its release counts. '
            'Set mode = "synchronous", or leave dp out'
        )
    if plan.codec is not None:
        raise SettingsError(
            'policy.mode is "buffered", but the codec rounds: a device adds what rounding has lost to its next '
            'update, and must know which of its updates count. Set mode = "synchronous", or codec = "lossless"'
        )
