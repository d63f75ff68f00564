"""The connection of a coordinator to the broker, and the runs that use this connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.leading.look import Rank
from protofleet.coordinator.leading.standby import Looked, LookNeeds, Standby
from protofleet.coordinator.queue.generation import Generation
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.run import Run
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.epochs import process_identity
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.block_qos import BlockQos
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.security.envelope import seals
from protofleet.protocol.security.keys import Identity, Keyring, Keys
from protofleet.protocol.transport.base import Done
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.event_loop import Worker
from protofleet.runtime.health import Heartbeats


class CoordinatorConnection:
    """The transport, the link and the other objects that all runs of a coordinator share."""

    def __init__(
        self, settings: CoordinatorSettings, keys: Keys, keyring: Keyring, epoch: int, folder: Path, bans: Bans,
        receive_queue: ReceiveQueue, worker: Worker, standby: Standby | None = None,
    ) -> None:  # fmt: skip
        """Set up the connection; `folder` is a part of the name by which a second coordinator reports this one.

        With a standby, the connection returns after a cut only when `connect` is called again.
        """
        self._standby, self._receive_queue = standby, receive_queue
        topics, me = Topics(settings.federation), Identity(COORDINATOR, epoch, keys)
        name, subscriptions = f"{settings.federation}.{COORDINATOR}", topics.coordinator_subscriptions()
        self.transport = Mqtt(
            name,
            settings.broker,
            receive_queue,
            subscriptions=subscriptions,
            retries_after_cut=standby is None,
        )
        self.link = CoordinatorLink(
            me, keyring, topics, self.transport, seals(settings.security), Clock(since=keys.not_before),
            process_identity(folder),
        )  # fmt: skip
        self.context = ProcessContext(self.link, worker, bans)
        receive_queue.dropped = lambda frames: self.link.legacy.count_overflow(frames)

    @property
    def rank(self) -> Rank:
        """Return the precedence that this process has claimed."""
        return Rank(self.link.epoch, self.link.who)

    def connect(self) -> None:
        will = self.link.will(self.link.topics.coord_state)
        self.transport.connect(will, returns=lambda: self.link.hears_own_messages)

    def look_after_cuts(self, service: CoordinatorService) -> None:
        """Let the service look, after a cut, whether another process has become the coordinator."""
        leader, standby, put = service.leader, self._standby, self._receive_queue.put
        if standby is None:
            return

        def look(rank: Rank, then: Callable[[Looked | Exception], None]) -> None:
            def lost(reason: str) -> None:
                put(Done(lambda: service.still_lost(reason)))

            needs = LookNeeds(lambda: service.finished, on_lost=lost)
            standby.look_beside(needs, rank, lambda looked: put(Done(partial(then, looked))))

        leader.look, leader.reconnect = look, self.connect


def run_of(
    settings: CoordinatorSettings, plan: Plan, spool: Spool, connection: CoordinatorConnection,
    keep_waiting: Callable[[], bool], generation: Generation | None = None,
) -> Run:  # fmt: skip
    """Return the run of these settings, whose folder is claimed already."""
    generation = generation or Generation(settings.name)
    part = CoordinatorRunLink(connection.link, generation.wire_name, spool.store)
    part.block_qos, part.most_block = BlockQos(settings.broker.block_qos), settings.broker.block_bytes
    machine = RoundMachine(settings.policy, settings.rounds, settings.seed)
    spool.index.db.keep_waiting = keep_waiting
    with spool.index.detect_takeover():
        return Run(
            plan, machine, spool, connection.context, part, limits=settings.limits,
            class_names=settings.class_names, budget=settings.budget, selection=settings.select,
            generation=generation,
        )  # fmt: skip


def unless(stopped: Callable[[], bool], heartbeats: Heartbeats) -> Callable[[], bool]:
    """Make a function that returns False if a wait for a locked file must end.

    The main loop calls this function while it waits. Each call sends a heartbeat, so the watchdog does
    not end the process during the wait. The wait must end once a stop signal has arrived.
    """

    def keep_waiting() -> bool:
        heartbeats.beat_if_working("loop")
        return not stopped()

    return keep_waiting
