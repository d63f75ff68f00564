"""A read-only view of an agent, for metrics, health checks and the status file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.conversation.coordinator_watchdog import CoordinatorWatchdog
from protofleet.edge_client.run_places import RunPlaces
from protofleet.edge_client.task_handler import TaskHandler
from protofleet.protocol.link.meter import Meter
from protofleet.protocol.privacy.ledger import spent_epsilon
from protofleet.runtime.privacy_series import PrivacyState


class AgentView:
    """The view of a device; if it takes part in several runs, `run`, `plan` and the like are of the first one."""

    __slots__ = ("_context", "_places", "_watchdog")

    def __init__(self, context: DeviceContext, places: RunPlaces, watchdog: CoordinatorWatchdog) -> None:
        self._context, self._places, self._watchdog = context, places, watchdog

    @property
    def _tasks(self) -> TaskHandler:
        return self._places.first.tasks

    @property
    def runs(self) -> Sequence[str]:
        """Return the runs in which the device takes part."""
        return [follower.run.name for follower in self._places.live]

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
        """Return whether the device is connected to the broker."""
        return self._context.connected

    @property
    def coordinator_answered(self) -> bool:
        """Return whether the coordinator has answered this process."""
        return self._context.status.coordinator_answered

    @property
    def coordinator_silent(self) -> bool:
        """Return whether the device is connected, but has received no new message for some minutes."""
        return self._watchdog.expired

    @property
    def run(self) -> str:
        """Return the run that the device has joined."""
        return self._context.state.saved.run

    @property
    def last_round(self) -> int:
        """Return the last round of this run for which the device has made an update."""
        return self._context.state.last_round

    @property
    def working(self) -> bool:
        return any(one.tasks.queue.busy for one in self._places.followers)

    @property
    def awaits_receipt(self) -> bool:
        """Return whether an update waits for its receipt, in a run that the coordinator leads now."""
        return any(one.tasks.awaits_receipt for one in self._places.followers)

    @property
    def receipts(self) -> Mapping[str, int]:
        """Return the number of receipts of this process, by verdict."""
        if len(self._places.followers) == 1:
            return MappingProxyType(self._tasks.delivery.receipts)
        return sum((one.tasks.delivery.receipts for one in self._places.followers), Counter[str]())

    @property
    def models_unwritten(self) -> int:
        """Return the number of model versions that this process could not write."""
        return sum(one.tasks.runner.models_unwritten for one in self._places.followers)

    @property
    def plan(self) -> str:
        """Return the digest of the plan to which the last updates belong."""
        return self._context.state.saved.plan

    @property
    def privacy(self) -> PrivacyState | None:
        """Return the epsilon that this device has given away in the run; None without dp and after the run."""
        plan = self._tasks.run.plan
        # An alert compares the epsilon with the budget, and a budget that is used up by the end of a run is no fault.
        if plan is None or plan.dp is None or self._tasks.run.over:
            return None
        mine = [one for one in self._context.state.file.releases if one.run == self._tasks.run.name]
        spent = {self._context.link.me.name: spent_epsilon(mine, plan.dp.delta)}
        return PrivacyState(plan.dp.unit, plan.dp.epsilon, spent)

    @property
    def method(self) -> str:
        """Return the method of the current plan; empty before the device has a plan."""
        plan = self._tasks.run.plan
        return plan.method if plan else ""

    @property
    def idle(self) -> bool:
        """Return whether the run is over or the coordinator has no run, and no other run has begun yet."""
        if self._places.active.names == ():
            return all(one.run.plan is None or one.run.over for one in self._places.followers)
        return self._tasks.run.over and not self._places.live

    @property
    def gathering(self) -> bool:
        """Return whether the coordinator waits for more devices before it sends the first tasks."""
        return self._tasks.run.gathering

    @property
    def paused(self) -> bool:
        """Return whether the device takes no new work until `resume` is called."""
        return self._tasks.hellos.backoff.paused

    @property
    def draining(self) -> bool:
        return self._tasks.draining

    @property
    def finished(self) -> bool:
        return self._context.finished

    @property
    def problem(self) -> str:
        """Return the reason why the device ended before the run ended, or ""."""
        return self._context.problem

    @property
    def cannot_follow(self) -> bool:
        """Return whether the device ended because of the run's plan, or because of the code of a plug-in's author.

        In both cases, a restart of the device would not help.
        """
        return self._context.status.cannot_follow

    @property
    def fell_back(self) -> int:
        """Return 1 if files were damaged at the start, so that a copy or an older state was used; otherwise 0."""
        return self._context.state.fallbacks

    @property
    def disk_full(self) -> bool:
        """Return whether the device takes no work because the disk is full."""
        return any(one.tasks.disk_space.problem for one in self._places.followers)

    @property
    def disk_free_bytes(self) -> int:
        state = self._context.state
        return state.disk.free_bytes(state.folder)
