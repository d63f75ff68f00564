"""The assembly of a device from its settings, and the objects that all devices of a process share."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

from protofleet.edge_client.agent import Agent
from protofleet.edge_client.agent_parts import AgentOptions, DeviceData, agent_parts
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.shard import Shards
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.host.answer_temperature import answer_temperature
from protofleet.edge_client.host.board_settings import BoardSettings
from protofleet.edge_client.host.energy import EnergyMeter, meter_of_board
from protofleet.edge_client.host.sensors import Sensors
from protofleet.edge_client.host.status_file import StatusFile
from protofleet.edge_client.host.supervisor import Supervisor
from protofleet.edge_client.inbox.growing import growing_data
from protofleet.edge_client.job_memory import JobMemory
from protofleet.edge_client.serving.hook import ModelHook
from protofleet.edge_client.serving.serving import ModelServing
from protofleet.edge_client.serving.versions import ModelVersions
from protofleet.edge_client.state.data_file import write_data_file
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.child_trainer import ChildTrainer
from protofleet.edge_client.trainer.deadline import Deadline
from protofleet.edge_client.trainer.local import LocalTrainer, admission_to
from protofleet.methods.contract.liveness import on_progress
from protofleet.methods.contract.torch_setup import one_thread_here
from protofleet.protocol.link.block_qos import BlockQos
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.envelope import seals
from protofleet.protocol.security.keyfiles import keep_to_ourselves
from protofleet.protocol.security.keys import Identity
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.transport.network import NetworkThreads
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime import credentials
from protofleet.runtime.event_loop import ThreadWorker, WorkThread
from protofleet.runtime.health import Heartbeats
from protofleet.runtime.host.machine import party_words


class Process:
    """The objects that all devices of a process share.

    A program makes one instance when it starts.
    """

    def __init__(self, name: str, devices: int = 1) -> None:
        self.devices = devices
        self.heartbeats, self.network, self.deadline = Heartbeats(), NetworkThreads(name), Deadline()
        self.admission, self.energy = lru_cache(admission_to), lru_cache(meter_of_board)
        self.work = WorkThread(self.heartbeats)
        on_progress(self._progress)

    def start_work(self, threads: int) -> None:
        """Start the work thread.

        Call this after the assembly of all devices, because each assembly sets torch's number of threads.
        """
        self.work.start(one_thread_here(threads))

    def _progress(self) -> None:
        self.heartbeats.beat_if_working("work")
        self.deadline.check()


@dataclass(frozen=True)
class Device:
    """An assembled device, which has begun to connect, but has not taken anything from its receive queue yet."""

    settings: DeviceSettings
    agent: Agent
    transport: Mqtt
    trainer: LocalTrainer | ChildTrainer
    state: DeviceState
    supervisor: Supervisor
    status: StatusFile | None
    models: ModelServing | None = None
    # The server of the device's metrics page, which is closed when the device ends.
    pages: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def check(self) -> None:
        """Make the regular checks of the overrides, of the board's heat and of the served model."""
        self.supervisor.check()
        if self.models is not None:
            self.models.check()

    def stop(self) -> None:
        """Stop the trainer and the command `models.on_model`, because the event loop stops neither of them."""
        self.trainer.stop()
        if self.models is not None:
            self.models.stop()


def runs_of(settings: DeviceSettings) -> int:
    """Return the largest number of runs of a device. A served model and the samples of an inbox belong to one run."""
    serves = settings.models is not None and settings.models.serves
    return 1 if serves or settings.data.inbox else settings.runs


@dataclass(frozen=True)
class Assembly:
    """The assembler of the devices of a process."""

    process: Process
    software: str
    shards: Shards

    def device(self, settings: DeviceSettings, version: int, receive_queue: ReceiveQueue) -> Device:
        """Assemble a device and connect it; `version` is the version of the settings."""
        keep_to_ourselves(Path(settings.folder))
        keys, keyring = credentials.of_device(
            settings.enrolled, settings.federation, settings.name, settings.key, settings.coordinator_key
        )
        state = DeviceState(Path(settings.folder), settings.durable)
        memory, runs = JobMemory(), runs_of(settings)
        trainer = self._trainer(settings, state, memory if runs > 1 else None)
        growing = growing_data(trainer, settings.data, state)
        self._note_data(growing.for_hellos if growing else trainer.data, state)
        me = Identity(settings.name, state.boot(int(time.time()), keys.holder), keys)
        topics = Topics(settings.federation)
        transport = self._transport(settings, receive_queue, topics)
        sealed, clock = seals(settings.security), Clock(since=keys.not_before)
        link = DeviceLink(me, keyring, topics, transport, state.store, sealed, clock)
        link.block_qos, link.most_block = BlockQos(settings.broker.block_qos), settings.broker.block_bytes
        receive_queue.dropped = link.count_overflow
        transport.connect(link.will(topics.device_state(settings.name)))
        data = DeviceData(
            growing or trainer.data, growing.start if growing else trainer.start, growing,
            lambda splits: self._note_data(splits, state), memory,
        )  # fmt: skip
        agent = Agent(
            *agent_parts(data, link, state, self._worker(settings, receive_queue), self._options(settings))
        )
        status = StatusFile(Path(settings.status), self.software, version) if settings.status else None
        supervisor = Supervisor(agent, settings, trainer.limit, Sensors(Path(settings.board.root)))
        models = self._serving(settings, state, agent)
        return Device(settings, agent, transport, trainer, state, supervisor, status, models)

    def _options(self, settings: DeviceSettings) -> AgentOptions:
        return AgentOptions(
            software=self.software,
            about=party_words(self.software),
            stays=settings.stays,
            confusion=settings.limits.confusion,
            energy=self._energy(settings.board),
            temperature=partial(answer_temperature, Sensors(Path(settings.board.root))),
            plugins=settings.plugins,
            privacy=settings.privacy,
            runs=runs_of(settings),
        )

    def _serving(self, settings: DeviceSettings, state: DeviceState, agent: Agent) -> ModelServing | None:
        chosen = settings.models
        if chosen is None or not chosen.serves:
            return None
        versions = ModelVersions(chosen.folder_in(state.folder), chosen.keep, state.disk)
        hook = ModelHook(chosen.on_model) if chosen.on_model else None
        serving = ModelServing(versions, lambda: agent.view.plan, hook)
        serving.begin()
        agent.observe(serving)
        return serving

    def _energy(self, board: BoardSettings) -> EnergyMeter | None:
        """Return the energy meter of the board, or None.

        All devices of this process are on the same board. So the board's energy is divided by the number of these
        devices. If `board.shared_by` is larger than this number, the energy is divided by `board.shared_by`.
        """
        return self.process.energy(board.root, max(board.shared_by, self.process.devices))

    def _note_data(self, data: Splits, state: DeviceState) -> None:
        counts = data.train.y.bincount(minlength=data.classes).tolist()
        write_data_file(state.folder, data.domain, counts, data.names)

    def _trainer(
        self, settings: DeviceSettings, state: DeviceState, memory: JobMemory | None
    ) -> LocalTrainer | ChildTrainer:
        """Return a trainer that works in a child process or in this process; the settings decide which."""
        if settings.trainer == "child":
            return ChildTrainer(settings, memory.saved if memory else state.half)
        return LocalTrainer(
            settings,
            self.process.deadline,
            self.shards,
            self.process.admission,
            alone=self.process.devices == 1,
        )

    def _transport(self, settings: DeviceSettings, receive_queue: ReceiveQueue, topics: Topics) -> Mqtt:
        return Mqtt(
            f"{settings.federation}.{settings.name}",
            settings.broker,
            receive_queue,
            subscriptions=topics.device_subscriptions(settings.name),
            session_seconds=settings.session_seconds,
            clean_start=False,
            network=self.process.network,
        )

    def _worker(self, settings: DeviceSettings, receive_queue: ReceiveQueue) -> ThreadWorker:
        # A child process has its own time limit and reports no progress to this process.
        if settings.trainer == "child":
            return ThreadWorker(receive_queue, begin=one_thread_here(settings.threads))
        return ThreadWorker(receive_queue, thread=self.process.work)
