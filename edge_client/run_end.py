"""The end of a run: the device finishes the run, and then ends or waits for another run."""

from __future__ import annotations

from collections.abc import Callable

from protofleet.edge_client.active_runs import ActiveRuns
from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.conversation.coordinator_watchdog import CoordinatorWatchdog
from protofleet.edge_client.conversation.old_messages import RunEndCheck
from protofleet.edge_client.task_handler import TaskHandler
from protofleet.protocol.wire.messages import Bye, Finished, Message, State
from protofleet.protocol.wire.reasons import DisconnectReason


class RunEnd:
    """The handler of end-of-run messages, in which the coordinator says that the run is over."""

    def __init__(
        self, context: DeviceContext, tasks: TaskHandler, watchdog: CoordinatorWatchdog, stays: bool,
        active: ActiveRuns | None = None, ended: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Create the handler; if `stays` is true, the device waits for another run after this run.

        `ended` is called after the end of one of several runs.
        """
        self._context, self._tasks, self._watchdog = context, tasks, watchdog
        self._active, self.ended = active or ActiveRuns(), ended
        self._check, self.stays = RunEndCheck(), stays

    @property
    def wake_at(self) -> float:
        """Return the time at which a waiting end-of-run message takes effect; infinity if no message waits."""
        return self._check.at

    def received(self, run: str, now: float) -> None:
        """Handle an end-of-run message for `run`, and finish the run if the message takes effect.

        The message may be old, because the broker retained it or queued it in a session.
        """
        if self._active.several:
            # If this process does not have the plan, the message may be old. But the coordinator would name the run.
            if self._tasks.run.plan is not None or self._active.lacks(run):
                self._finish_one_of_several()
            return
        own_run, ended_run = self._context.state.saved.run, self._context.heard_file.last.over
        if self._check.received(run, own_run, self._tasks.run.plan is not None, ended_run, now):
            self.finish()

    def contradicted(self) -> None:
        """Forget the end-of-run message, because the coordinator has sent another message."""
        self._check.contradicted()

    def _finish_one_of_several(self) -> None:
        self._context.state.end_run()
        self._tasks.end_run()
        self._context.link.send(Bye(DisconnectReason.FINISHED.value))
        self.ended()

    def finish(self) -> None:
        context = self._context
        self._watchdog.stop()
        self._check.contradicted()
        context.heard_file.note_run_end(context.state.saved.run)
        self._tasks.end_run()
        context.link.send(Bye(DisconnectReason.FINISHED.value))
        if not self.stays:
            context.end(context.state.cannot_answer(""))


def says_run_is_over(message: Message) -> bool:
    """Return whether the message says that the run is over.

    The coordinator sends the message Finished to each device, and the message State to all devices. Each of these
    messages alone is enough, because the other message may be lost.
    """
    return isinstance(message, Finished) or message == State(False, "finished")
