"""Check that a run can sum masked updates, and set up its summed phases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protofleet.coordinator.round.past_sums import PastSums
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.secagg.phase import EnrolledDevice, Records, SummedPhases
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.shared_noise import demand_field
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.security.enrolment import KnownRecords
from protofleet.protocol.security.keyfiles import KeyFileError
from protofleet.protocol.security.keys import Keyring
from protofleet.protocol.security.statements import StatementError
from protofleet.protocol.settings.reader import SettingsError

NO_RECORDS: Final = (
    "secagg is set, but this coordinator knows only key files, so the devices could not check each other's keys; "
    "enrol the coordinator and the devices (docs/security.md), or leave secagg out"
)


def demand_secagg_fit(policy: Policy, plan: Plan) -> None:
    """Raise SettingsError if the policy needs the updates of single devices, but the run learns only their sum."""
    settings = plan.secagg
    if settings is None:
        return
    if policy.buffered:
        raise SettingsError(
            'secagg is set and policy.mode is "buffered", but a late update would be the difference of two sums; set '
            'mode = "synchronous"'
        )
    if policy.robust and (rules := policy.robust.rules):
        name, rule = next(iter(rules.items()))
        raise SettingsError(
            f'secagg is set and policy.robust.{name} is "{rule}", but a rule needs the update of each device, and '
            "the run learns only their sum; leave policy.robust or secagg out"
        )
    if policy.spares:
        raise SettingsError(
            f"secagg is set and policy.spares is {policy.spares}, but a late device would show itself "
            "as the difference of two sums; set spares = 0"
        )
    if policy.quorum < settings.least:
        raise SettingsError(
            f"secagg.least is {settings.least}, but policy.quorum is {policy.quorum}; raise policy.quorum to at "
            f"least {settings.least}"
        )
    if policy.stop is not None and settings.metrics == "off":
        raise SettingsError(
            'policy.stop needs the validation accuracy of each device, but secagg.metrics is "off"; set metrics = '
            '"each", or leave policy.stop out'
        )
    if policy.cohort and plan.dp is not None:
        demand_field(plan.dp, settings, policy.cohort, plan.sums)
    elif policy.cohort:
        try:
            settings.fraction(policy.cohort)
        except ValueError as error:
            raise SettingsError(str(error)) from None


def summed_phases(
    plan: Plan, policy: Policy, link: CoordinatorRunLink, keyring: Keyring, past: PastSums
) -> SummedPhases | None:
    """Return the summed phases of a run, or None if the run does not sum masked updates."""
    if plan.secagg is None:
        return None
    if not isinstance(keyring, KnownRecords):
        raise SettingsError(NO_RECORDS)
    federation = link.party.topics.federation
    return SummedPhases(plan, plan.secagg, federation, link.run, records_of(keyring), policy.weight_cap, past)


def records_of(keyring: KnownRecords) -> Records:
    """Return a function that reads the records of devices. It may be called on the thread of the worker."""

    def read(names: Sequence[str]) -> dict[str, EnrolledDevice]:
        found = {}
        for name in names:
            try:
                record, data = keyring.signed(name)
            # The device is not enrolled any more, so it takes no part in the sum.
            except (StatementError, KeyFileError):
                continue
            found[name] = EnrolledDevice(record.sign, data)
        return found

    return read
