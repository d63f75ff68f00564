"""The validation accuracy of a round, which policy.stop uses to decide whether the run ends."""

from __future__ import annotations

import logging
import statistics

from protofleet.coordinator.observe.measured import by_device, by_domain, counted
from protofleet.coordinator.participants import Participants
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.plan import Plan

log = logging.getLogger("protofleet.coordinator")


class ValidationOfAll:
    """The validation accuracy of all present devices, as one number.

    The number is the mean over domains. If the policy caps weights, the number is the median over devices, so
    that one lying device of four cannot end a run. The number is computed from accepted updates on the disk. So a
    coordinator gets the same number after a restart.
    """

    def __init__(self, plan: Plan, machine: RoundMachine, spool: Spool, participants: Participants) -> None:
        self._machine, self._spool, self._participants = machine, spool, participants
        self._view, self._told = plan.variant.reports, False

    def __call__(self) -> float | None:
        """Return the validation accuracy for the round that ends now.

        Return None if no decision needs this accuracy, or if no task of the round was sent to all present
        devices.
        """
        machine = self._machine
        if machine.policy.stop is None or machine.is_last_evaluation or not machine.measured_by_all:
            return None
        metrics: dict[str, dict[str, float]] = {}
        for phase, devices in machine.measured_by_all.items():
            answers = self._spool.answers(machine.round, phase)
            for device in devices:
                if device in answers:
                    found = counted(answers[device].metrics, self._participants.measures)
                    metrics.setdefault(device, {}).update(found)
        p = self._participants
        held = {device: (p.domains.get(device, device), p.members[device].examples) for device in metrics}
        domains = by_domain(metrics, held, "accuracy.validation").get(self._view, {})
        if not domains:
            self._tell_once()
            return None
        if machine.policy.weight_cap:
            return statistics.median(by_device(metrics, "accuracy.validation")[self._view].values())
        return statistics.fmean(domains.values())

    def _tell_once(self) -> None:
        if not self._told:
            log.warning(
                "policy.stop cannot end this run: no device has measured validation samples in round %d; set "
                "data.validation of the devices to a share above 0, for example 0.1", self._machine.round,
            )  # fmt: skip
        self._told = True
