"""The view of a run for observers, and the methods of an observer that the run calls.

An observer cannot change the run through this view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from protofleet.coordinator.command_queue import CommandQueue
from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.devices.selection import SelectedDevices
from protofleet.coordinator.observe.budget import BudgetState
from protofleet.coordinator.observe.isolation import Isolation
from protofleet.coordinator.participants import Participants
from protofleet.coordinator.queue.generation import Generation
from protofleet.coordinator.round.events import Command, Event, Stage
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.run_times import RunTimes
from protofleet.coordinator.server.runner import ServerRunner, Step
from protofleet.coordinator.spool.origin import Origin
from protofleet.coordinator.spool.releases import ReleaseLedger
from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.coordinator.spool.traffic import RoundTraffic
from protofleet.coordinator.spool.uncoded import UncodedBytes
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.overview import NoSamples
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.weights import weights_of
from protofleet.methods.served.rebuild import described, words_of
from protofleet.methods.served.served import as_exported, rules_of
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.meter import Meter
from protofleet.protocol.wire.arrays import parts
from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.reasons import Reason
from protofleet.runtime.privacy_series import PrivacyState

FINISHED: Final = "finished"
STOPPED: Final = "stopped"  # By an operator.
DIVERGED: Final = "diverged"
ENDS: Final = (FINISHED, STOPPED, DIVERGED)


@dataclass(frozen=True, slots=True)
class MeterView:
    """A read-only view of the link's counts, which may grow while an observer reads them."""

    payload: Mapping[tuple[str, str], int]
    wire: Mapping[tuple[str, str], int]
    messages: Mapping[tuple[str, str, str], int]
    rejected: Mapping[Reason, int]

    @staticmethod
    def of(meter: Meter) -> MeterView:
        payload, wire = MappingProxyType(meter.payload), MappingProxyType(meter.wire)
        return MeterView(payload, wire, MappingProxyType(meter.messages), MappingProxyType(meter.rejected))


class RunView:
    """The view of a run for observers: values, copies and read-only mappings.

    Mappings of counts are not copies, so that the thread that serves the metrics reads current values.
    """

    __slots__ = (
        "_budget", "_context", "_diverged", "_generation", "_isolation", "_limits", "_link", "_machine",
        "_participants", "_plan", "_queue", "_releases", "_selection", "_server", "_spool", "_times", "_uncoded",
    )  # fmt: skip

    def __init__(
        self, plan: Plan, machine: RoundMachine, spool: Spool, context: ProcessContext, link: CoordinatorRunLink,
        times: RunTimes, selection: SelectedDevices, participants: Participants, server: ServerRunner,
        queue: CommandQueue, limits: CoordinatorLimits, isolation: Isolation, diverged: Callable[[], str],
        uncoded: UncodedBytes, budget: Callable[[], BudgetState] | None = None,
        generation: Generation | None = None, releases: ReleaseLedger | None = None,
    ) -> None:  # fmt: skip
        self._plan, self._machine, self._spool, self._context = plan, machine, spool, context
        self._link, self._times, self._selection = link, times, selection
        self._participants, self._server, self._queue = participants, server, queue
        self._limits, self._isolation, self._diverged = limits, isolation, diverged
        self._uncoded, self._budget = uncoded, budget
        self._generation = generation or Generation(link.run)
        self._releases = releases

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def policy(self) -> Policy:
        return self._machine.policy

    @property
    def rounds_planned(self) -> int:
        return self._machine.rounds

    @property
    def origin(self) -> Origin | None:
        """Return the snapshot of another run with which this run has started; None if there is none."""
        return self._spool.origin()

    @property
    def limits(self) -> CoordinatorLimits:
        return self._limits

    @property
    def now(self) -> float:
        return self._context.now

    @property
    def stopped(self) -> str:
        """Return why the process ends before the end of the run; "" if there is no such reason."""
        return self._context.stopped

    @property
    def diverged(self) -> str:
        return self._diverged()

    @property
    def over(self) -> bool:
        """Return whether the run is over. From that moment, the coordinator informs the devices about the end."""
        return self._times.shutdown.begun

    @property
    def misfits(self) -> str:
        """Return the names of the devices that cannot take part, and the reason of the first, or ""."""
        return self._participants.misfits.words

    @property
    def ended_as(self) -> str:
        """Return how the run has ended, as one of ENDS; "" before its end."""
        if not self.over:
            return ""
        return DIVERGED if self.diverged else STOPPED if self._machine.is_stopped else FINISHED

    @property
    def name(self) -> str:
        return self._generation.run

    @property
    def generation(self) -> int:
        """Return how often the run has gone on behind its devices, plus 1."""
        return self._generation.number

    @property
    def federation(self) -> str:
        return self._context.link.topics.federation

    # Properties of the session with the broker.

    @property
    def connected(self) -> bool:
        return self._context.connected

    # Properties of the round.

    @property
    def round(self) -> int:
        return self._machine.round

    @property
    def next_round_at(self) -> float:
        """Return the Unix time at which the next round may begin, or 0 if the policy does not delay it."""
        return self._machine.next_round_at

    @property
    def paused(self) -> str:
        """Return why an operator has paused the run, or ""."""
        return self._machine.paused

    @property
    def waits_for_devices(self) -> bool:
        """Return whether the run waits only for devices before it can begin a round."""
        return self.is_gathering and not self._machine.next_round_at and not self._machine.paused

    @property
    def is_gathering(self) -> bool:
        """Return whether no round is open."""
        return self._machine.stage is Stage.GATHERING

    @property
    def attempt(self) -> int:
        return self._machine.attempt

    @property
    def asked(self) -> str:
        """Return the name of the open phase."""
        return self._machine.asked

    @property
    def cohort(self) -> tuple[str, ...]:
        return self._machine.cohort

    @property
    def recipients(self) -> tuple[str, ...]:
        """Return the devices of the cohort that get the open task; some may still work on an earlier task."""
        return self._machine.recipients

    @property
    def present(self) -> tuple[str, ...]:
        """Return the devices that were present when the cohort of the round was chosen."""
        return self._machine.present

    @property
    def is_last_evaluation(self) -> bool:
        return self._machine.is_last_evaluation

    @property
    def ended_early(self) -> str:
        """Return why the training has ended before its last round, or ""."""
        end = self._machine.ended_early
        return end.words if end else self._machine.stopped

    @property
    def ended_by(self) -> str:
        """Return what has ended the training early: "budget", "nobody_left", "operator", "policy.stop" or ""."""
        end = self._machine.ended_early
        return end.by if end else "policy.stop" if self._machine.stopped else ""

    @property
    def answered(self) -> frozenset[str]:
        return frozenset(self._machine.answered)

    def answers(self, round: int, phase: str) -> Mapping[str, Accepted]:
        return MappingProxyType(self._spool.answers(round, phase))

    def arrays(self, round: int, phase: str) -> Mapping[str, LazyPayload]:
        """Return the arrays of each device's update for this phase. They are read from the disk only when used."""
        answers = self._spool.answers(round, phase)
        return MappingProxyType({device: self._server.arrays(answer) for device, answer in answers.items()})

    # Properties of the devices.

    @property
    def roster(self) -> frozenset[str]:
        return frozenset(self._machine.roster)

    @property
    def unsteady(self) -> frozenset[str]:
        return frozenset(self._machine.flaps.flapping(self.now))

    @property
    def members(self) -> Mapping[str, Member]:
        return MappingProxyType(self._participants.members)

    @property
    def domains(self) -> Mapping[str, str]:
        return MappingProxyType(self._participants.domains)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the class names in the order of their labels; empty until the names are decided."""
        return self._participants.name_vote.names

    @property
    def software(self) -> Mapping[str, str]:
        """Return the software and the machine of each device, as the device describes them."""
        return MappingProxyType(self._participants.software)

    @property
    def measures(self) -> frozenset[str]:
        """Return the metrics that the run's method has."""
        return self._participants.measures

    @property
    def enrolled(self) -> frozenset[str]:
        """Return the enrolled devices that the run selects.

        This reads the list of all keys, so do not read it for each event.
        """
        return self._selection.of(self._context.enrolled_devices)

    def selects(self, device: str) -> bool:
        return self._selection.selects(device)

    def is_enrolled(self, device: str) -> bool:
        """Return whether the device is enrolled, and the run selects it."""
        return self.selects(device) and device in self._context.link.keyring

    @property
    def wills(self) -> Mapping[tuple[str, str], int]:
        """Return the number of MQTT wills by device and outcome."""
        return MappingProxyType(self._participants.last_wills.counted)

    @property
    def older_copies(self) -> Mapping[tuple[str, str], int]:
        """Return the number of messages that point to an older copy, by device and by the owner of the folder."""
        return MappingProxyType(self._participants.older_copies.counted)

    # Properties of the traffic.

    @property
    def meter(self) -> MeterView:
        return MeterView.of(self._link.meter)

    def traffic(self) -> Meter:
        """Return a copy of the counts of all traffic until now."""
        return self._link.meter.snapshot()

    def traffic_by_device(self) -> Counter[tuple[str, str, str]]:
        """Return a copy of the bytes that this process has counted, by device, direction and kind."""
        return Counter(self._link.meter.by_device)

    def earlier_traffic(self, round: int) -> list[RoundTraffic]:
        """Return the traffic of this round that earlier processes have counted."""
        return self._spool.earlier_traffic(round)

    def uncoded(self, round: int) -> dict[str, dict[str, int]]:
        """Return the uncoded bytes of the round that ends now, by direction and kind; {} without a codec."""
        return self._uncoded.of_round(round)

    def missing(self) -> Mapping[str, int]:
        """Return the number of missing messages by device, counted from gaps in the sequence numbers."""
        return self._context.link.missing()

    def rules(self) -> Mapping[str, str]:
        """Return descriptions of all ways in which devices predict with the current state of the server."""
        half = replace(self._plan, init=None, public=None).client_half(NoSamples(), "")
        half.receive(self._server.server.payload())
        return {way: words_of(described(as_exported(rule))) for way, rule in rules_of(half).items()}

    @property
    def model_bytes(self) -> int:
        """Return the bytes that FedAvg would need from one device: the encoded weights of the same network."""
        arrays = to_numpy(weights_of(self._server.server.model))
        # Leave out control data, because only tensors count as payload.
        return sum(size for kind, size in parts(arrays) if kind != "control")

    @property
    def budget(self) -> BudgetState | None:
        """Return the state of the budgets; None in a run without a budget."""
        return self._budget() if self._budget else None

    @property
    def privacy(self) -> PrivacyState | None:
        """Return the epsilon that each device has given away so far; None in a run without dp."""
        if self._releases is None:
            return None
        dp = self._releases.dp
        return PrivacyState(dp.unit, dp.epsilon, dict(self._releases.epsilon))

    # Properties of the disk, and counts of errors of this program.

    @property
    def folder(self) -> Path:
        return self._spool.folder

    @property
    def newest_round(self) -> int:
        """Return the last round that has begun."""
        return self._spool.newest_round

    @property
    def saved_attempt(self) -> int:
        """Return the saved attempt number of the last round that has begun."""
        return self._spool.newest_attempt

    @property
    def saved_answers(self) -> int:
        """Return the number of accepted updates on the disk for the last round that has begun."""
        return self._spool.count_answers(self._spool.newest_round)

    @property
    def free_bytes(self) -> int:
        return self._spool.disk.free_bytes(self._spool.folder)

    @property
    def disk_full(self) -> str:
        """Return why no new round begins; "" if the disk has room."""
        return self._queue.full_disk.problem

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Return the counts of damaged data by the kind of data."""
        return MappingProxyType(self._spool.fallbacks)

    @property
    def observer_errors(self) -> int:
        return self._isolation.errors

    @property
    def server_half_errors(self) -> int:
        return self._server.errors


class RunObserver(Protocol):
    """An observer of a run, which is called after each decision of the machine."""

    def happened(self, run: RunView, event: Event, commands: Sequence[Command], now: float) -> None: ...

    def answered(self, run: RunView, update: Update, now: float) -> None: ...

    def stepped(self, run: RunView, step: Step, now: float) -> None: ...
