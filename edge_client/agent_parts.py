"""The assembly of a device's agent from its parts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from protofleet.edge_client.active_runs import ActiveRuns
from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.conversation.answer_delivery import AnswerDelivery
from protofleet.edge_client.conversation.coordinator_watchdog import CoordinatorWatchdog
from protofleet.edge_client.conversation.hello import HelloSender
from protofleet.edge_client.conversation.hello_exchange import HelloExchange
from protofleet.edge_client.current_run import CurrentRun
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.host.answer_energy import AnswerEnergy
from protofleet.edge_client.host.energy import EnergyMeter
from protofleet.edge_client.inbox.growing import GrowingData
from protofleet.edge_client.inbox.watch import InboxWatch
from protofleet.edge_client.job_memory import JobMemory
from protofleet.edge_client.job_runner import JobRunner
from protofleet.edge_client.masked_sums import MaskedSums
from protofleet.edge_client.privacy import PrivacySettings
from protofleet.edge_client.run_end import RunEnd
from protofleet.edge_client.run_follower import RunFollower
from protofleet.edge_client.run_places import RunPlaces
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.heard import open_heard_file
from protofleet.edge_client.task_handler import TaskHandler
from protofleet.edge_client.trainer.job import StartJob
from protofleet.edge_client.work_turns import WorkTurns
from protofleet.methods.contract.confusion import MOST_CLASSES
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.enrolment import KnownRecords
from protofleet.protocol.wire import forms
from protofleet.runtime.broker_session import BrokerSession
from protofleet.runtime.event_loop import Worker

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True)
class DeviceData:
    """The data of a device, and two functions.

    `start_job` starts the device's jobs, and `note` is called when data were added.
    """

    splits: Splits
    start_job: StartJob
    growing: GrowingData | None = None
    """The data of a device with an inbox; `splits` and `start_job` are then those of `growing`."""
    note: Callable[[Splits], None] = lambda data: None
    """Called whenever the data have grown."""
    memory: JobMemory = field(default_factory=JobMemory)
    """The place for the job of one run at a time."""

    @property
    def for_hellos(self) -> Splits:
        """Return the data that a hello announces."""
        return self.growing.for_hellos if self.growing else self.splits


@dataclass(frozen=True)
class AgentOptions:
    """The options of a device's agent; each option has a default."""

    software: str = ""
    """Version of the software, which each hello names."""
    about: str = ""
    """Software and machine in full, which the first hello on a connection names."""
    stays: bool = False
    """If True, the device waits for another run after the end of a run."""
    confusion: int = MOST_CLASSES
    """Largest number of classes for which the device reports which classes it confuses."""
    clock: Callable[[], float] = time.perf_counter
    """Clock that measures the seconds of work."""
    energy: EnergyMeter | None = None
    """Energy meter of the board; None if the board has none."""
    temperature: Callable[[], Mapping[str, float]] = dict
    """Function that returns the temperature of the board as a metric."""
    plugins: PlugIns = field(default_factory=PlugIns)
    """Plug-ins that a plan may name."""
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    """Demands of the device on a plan."""
    runs: int = 1
    """Largest number of runs in which the device takes part at the same time."""


class AgentParts(NamedTuple):
    """The parts of an agent, in the order of the arguments of `Agent`."""

    context: DeviceContext
    places: RunPlaces
    watchdog: CoordinatorWatchdog
    session: BrokerSession
    inbox: InboxWatch | None


def agent_parts(
    data: DeviceData, link: DeviceLink, state: DeviceState, worker: Worker,
    options: AgentOptions = AgentOptions(),
) -> AgentParts:  # fmt: skip
    """Build the parts of a device's agent and connect them."""
    context = DeviceContext(link, state, worker, open_heard_file(state, link))
    # The samples of a device with an inbox belong to one run, because each round has its own list of samples.
    limit = 1 if data.growing else options.runs
    assembly = _Assembly(data, options, context, WorkTurns(), ActiveRuns(), limit)
    inbox = None
    first = assembly.follower(link, state.saved.run)
    if data.growing:
        tasks, hellos = first.tasks, first.hellos
        inbox = InboxWatch(context, data.growing, lambda: tasks.free, hellos.send, data.note)
        first.inbox = inbox
    assembly.places.fill(first, assembly.follower, assembly.lobby, options.stays)
    return AgentParts(context, assembly.places, assembly.watchdog, BrokerSession(log), inbox)


def masked_sums_of(link: DeviceLink) -> MaskedSums | None:
    """Return the device's part of masked sums, or None if the device has no enrolment."""
    known = link.keyring
    if not isinstance(known, KnownRecords):
        return None
    me = link.me
    return MaskedSums(me.name, me.keys.sign, link.topics.federation, lambda: known.trust, time.time)


class _Assembly:
    """The maker of the parts that belong to one run."""

    def __init__(
        self, data: DeviceData, options: AgentOptions, context: DeviceContext, turns: WorkTurns, active: ActiveRuns,
        limit: int,
    ) -> None:  # fmt: skip
        self._data, self._options, self._context = data, options, context
        self._turns, self._active = turns, active
        self.places, self.watchdog = RunPlaces(limit, turns, active), CoordinatorWatchdog()
        self._energy = AnswerEnergy(options.energy)

    def follower(self, link: DeviceLink, run: str) -> RunFollower:
        first, options = self._context, self._options
        context = first if link is first.link else first.of_run(link, first.state.of(run))
        current = CurrentRun(run)
        hellos = self._hellos(context, current)
        tasks = TaskHandler(
            context, current, self._runner(context), hellos, AnswerDelivery(link), self._turns, self._active
        )
        run_end = RunEnd(context, tasks, self.watchdog, options.stays, self._active)
        return RunFollower(context, hellos, tasks, run_end, self.watchdog, self._active)

    def lobby(self, link: DeviceLink) -> HelloExchange:
        """Return the exchange of hellos that belong to no run."""
        context = self._context.of_run(link, self._context.state.of(""))
        context.leaves_run = self.places.leave_lobby
        return self._hellos(context, CurrentRun(""))

    def _hellos(self, context: DeviceContext, run: CurrentRun) -> HelloExchange:
        options = self._options
        sender = HelloSender(
            context.link, self._data.for_hellos, context.state, options.software, options.about,
            self.places.complete,
        )  # fmt: skip
        return HelloExchange(context, run, sender)

    def _runner(self, context: DeviceContext) -> JobRunner:
        data, options, link = self._data, self._options, context.link

        def tells_confusion() -> bool:
            return forms.CONFUSION in link.peer_forms and data.splits.classes <= options.confusion

        return JobRunner(
            data.start_job,
            context.state,
            data.splits,
            lambda: link.block,
            options.clock,
            tells_confusion,
            self._energy,
            options.temperature,
            options.plugins,
            options.privacy,
            device=link.me.name,
            sums=masked_sums_of(link),
            memory=data.memory if self.places.limit > 1 else None,
        )
