"""What an agent shows to whoever watches it: nothing of it can be changed by that."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.conversation.coordinator_watchdog import CoordinatorWatchdog
from protofleet.edge_client.task_handler import TaskHandler
from protofleet.protocol.link.meter import Meter


class AgentView:
    __slots__ = ("_context", "_tasks", "_watchdog")

    def __init__(self, context: DeviceContext, tasks: TaskHandler, watchdog: CoordinatorWatchdog) -> None:
        self._context, self._tasks, self._watchdog = context, tasks, watchdog

    @property
    def boot(self) -> int:
        return self._context.link.me.boot

    @property
    def meter(self) -> Meter:
        return self._context.link.meter

    @property
    def connection_errors(self) -> int:
        return self._context.link.transport.errors.count

    @property
    def broker_certificate_ends(self) -> float | None:
        return self._context.link.transport.broker_certificate_ends

    @property
    def connected(self) -> bool:
        """To the broker."""
        return self._context.connected

    @property
    def coordinator_answered(self) -> bool:
        """This process."""
        return self._context.coordinator_answered

    @property
    def coordinator_silent(self) -> bool:
        """Connected, and the coordinator has said nothing new for long."""
        return self._watchdog.expired

    @property
    def run(self) -> str:
        """The one that the device has taken on."""
        return self._context.state.saved.run

    @property
    def last_round(self) -> int:
        """That was answered in this run."""
        return self._context.state.last_round

    @property
    def working(self) -> bool:
        return self._tasks.queue.busy

    @property
    def awaits_receipt(self) -> bool:
        """An answer is on its way."""
        return self._tasks.delivery.pending is not None

    @property
    def receipts(self) -> Mapping[str, int]:
        """Of this process, by verdict."""
        return MappingProxyType(self._tasks.delivery.receipts)

    @property
    def models_unwritten(self) -> int:
        """Versions of models that could not be written, in this process."""
        return self._tasks.runner.models_unwritten

    @property
    def plan(self) -> str:
        """The digest of the plan that its last answers are of."""
        return self._context.state.saved.plan

    @property
    def method(self) -> str:
        """The method of the plan that it has taken up, empty before there is one."""
        plan = self._tasks.run.plan
        return plan.method if plan else ""

    @property
    def idle(self) -> bool:
        """The run is over, and there has been no other yet."""
        return self._tasks.run.over

    @property
    def gathering(self) -> bool:
        """The coordinator waits for further devices before it asks any."""
        return self._tasks.run.gathering

    @property
    def paused(self) -> bool:
        """It takes no new work until it is told otherwise."""
        return self._tasks.hellos.backoff.paused

    @property
    def draining(self) -> bool:
        return self._tasks.draining

    @property
    def finished(self) -> bool:
        return self._context.finished

    @property
    def problem(self) -> str:
        """Why it ended before the run did."""
        return self._context.problem

    @property
    def cannot_follow(self) -> bool:
        """It ended for the run's plan, or its author's code: a later start of this device would as well."""
        return self._context.cannot_follow

    @property
    def fell_back(self) -> int:
        """1 where files were damaged at the start, and the device went back to before its last answer."""
        return self._context.state.fallbacks

    @property
    def disk_full(self) -> bool:
        """No work is taken on for want of room."""
        return bool(self._tasks.disk_space.problem)

    @property
    def disk_free_bytes(self) -> int:
        state = self._context.state
        return state.disk.free_bytes(state.folder)
