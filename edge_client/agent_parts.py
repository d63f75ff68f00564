"""The assembly of a device's agent from its parts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

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
from protofleet.edge_client.job_runner import JobRunner
from protofleet.edge_client.run_end import RunEnd
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.heard import open_heard_file
from protofleet.edge_client.task_handler import TaskHandler
from protofleet.edge_client.trainer.job import StartJob
from protofleet.methods.contract.confusion import MOST_CLASSES
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.link.device import DeviceLink
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
    """Whether the device waits for another run after the end of one."""
    confusion: int = MOST_CLASSES
    """Largest number of classes for which the device reports which classes it confuses."""
    clock: Callable[[], float] = time.perf_counter
    """Clock that measures the seconds of work."""
    energy: EnergyMeter | None = None
    """Energy meter of the board; None if the board has none."""
    plugins: PlugIns = field(default_factory=PlugIns)
    """Plug-ins that a plan may name."""


class AgentParts(NamedTuple):
    """The parts of an agent, in the order of the arguments of `Agent`."""

    context: DeviceContext
    hellos: HelloExchange
    tasks: TaskHandler
    run_end: RunEnd
    watchdog: CoordinatorWatchdog
    session: BrokerSession
    inbox: InboxWatch | None


def agent_parts(
    data: DeviceData, link: DeviceLink, state: DeviceState, worker: Worker,
    options: AgentOptions = AgentOptions(),
) -> AgentParts:  # fmt: skip
    """Build the parts of a device's agent and connect them."""
    context = DeviceContext(link, state, worker, open_heard_file(state, link))
    run = CurrentRun(state.saved.run)
    sender = HelloSender(link, data.for_hellos, state, options.software, options.about)
    hellos = HelloExchange(context, run, sender)
    runner = _job_runner(data, link, state, options)
    tasks = TaskHandler(context, run, runner, hellos, AnswerDelivery(link))
    watchdog = CoordinatorWatchdog()
    run_end = RunEnd(context, tasks, watchdog, options.stays)
    inbox = None
    if data.growing:
        inbox = InboxWatch(context, data.growing, lambda: tasks.free, hellos.send, data.note)
    return AgentParts(context, hellos, tasks, run_end, watchdog, BrokerSession(log), inbox)


def _job_runner(data: DeviceData, link: DeviceLink, state: DeviceState, options: AgentOptions) -> JobRunner:
    def tells_confusion() -> bool:
        return forms.CONFUSION in link.peer_forms and data.splits.classes <= options.confusion

    return JobRunner(
        data.start_job,
        state,
        data.splits,
        lambda: link.block,
        options.clock,
        tells_confusion,
        AnswerEnergy(options.energy),
        options.plugins,
        device=link.me.name,
    )
