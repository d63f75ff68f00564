"""The handler of a run's plan and tasks, which gives tasks to the worker one by one and delivers the updates.

If a task arrives again, the handler reads the earlier update from the disk and delivers this update again.
"""

from __future__ import annotations

import logging

from protofleet.edge_client.active_runs import ActiveRuns
from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.conversation.answer_delivery import AnswerDelivery
from protofleet.edge_client.conversation.hello import plan_for
from protofleet.edge_client.conversation.hello_exchange import NEVER, HelloExchange
from protofleet.edge_client.current_run import CurrentRun
from protofleet.edge_client.ended_attempts import EndedAttempts
from protofleet.edge_client.host.answer_energy import SEND, TRAIN
from protofleet.edge_client.job_runner import JobRunner
from protofleet.edge_client.masked_sums import demand_enrolment
from protofleet.edge_client.received_delta import delta_reader
from protofleet.edge_client.state.disk_space import DiskSpaceCheck
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.edge_client.trainer.job import Job
from protofleet.edge_client.work_queue import Question, WorkQueue
from protofleet.edge_client.work_turns import WorkTurns
from protofleet.methods.contract.plan import Plan
from protofleet.methods.plugins.authors import AuthorError
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.settings.named_codecs import read_codec
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import is_full
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.messages import Bye, Welcome
from protofleet.protocol.wire.reasons import DisconnectReason

log = logging.getLogger("protofleet.device")


class TaskHandler:
    def __init__(
        self, context: DeviceContext, run: CurrentRun, runner: JobRunner, hellos: HelloExchange,
        delivery: AnswerDelivery, turns: WorkTurns | None = None, active: ActiveRuns | None = None,
    ) -> None:  # fmt: skip
        """Create the handler of one run; the handlers of all runs of a device share `turns`."""
        self._turns = turns or WorkTurns()
        self._turns.runs.append(self)
        self.run, self.runner, self.queue = run, runner, WorkQueue()
        self.disk_space = DiskSpaceCheck(context.state)
        self.draining = False
        self._context, self._link, self._state = context, context.link, context.state
        self.hellos, self.delivery, self._active = hellos, delivery, active or ActiveRuns()
        self._ended_attempts = EndedAttempts(context.state, context.heard_file.last.over, self._turns)

    def drain(self) -> None:
        """Take no more tasks."""
        self.draining, self.queue.next = True, None

    @property
    def drained(self) -> bool:
        """Return whether the device takes no more tasks, and its last update awaits no receipt."""
        return self.draining and not self.queue.busy and not self.awaits_receipt

    @property
    def awaits_receipt(self) -> bool:
        """Return whether an update waits for its receipt, in a run that the coordinator leads now.

        While a run is paused or cannot go on, nobody receives its update. The device sends this update again as soon
        as the coordinator names the run.
        """
        return self.delivery.pending is not None and not self._active.lacks(self.run.name)

    @property
    def resend_at(self) -> float:
        return self.delivery.wake_at if self.awaits_receipt else NEVER

    @property
    def idle(self) -> bool:
        """Return whether the worker has no work, and no update waits for its receipt."""
        return not (self.queue.busy or self.delivery.pending)

    @property
    def has_task(self) -> bool:
        """Return whether the device has a task of this run in hand, from its arrival to the receipt."""
        return not self.idle or self.queue.next is not None or self._link.asked is not None

    @property
    def busy(self) -> bool:
        return self.queue.busy

    @property
    def needed_objects(self) -> set[bytes]:
        """Return the objects of the store that the coordinator may request or that the waiting task needs."""
        waiting = {self.queue.next.broadcast} if self.queue.next else set()
        return self._link.served | waiting

    @property
    def free(self) -> bool:
        """Return whether the device is connected, has no open task, and is not draining."""
        return self._context.connected and self.idle and not self.draining

    def change_run(self, run: str) -> None:
        """Change to another run.

        No result of the old run is used in the new run, even if the two runs have the same plan or the same name. The
        result of the present work is dropped too.
        """
        self.run.change(run)
        self.queue.change_run()
        self._drop_job()
        self._link.forget_all()

    def end_run(self) -> None:
        self.run.over, self.queue.next = True, None
        self.delivery.cancel()
        self.hellos.bye_sent()
        self._ended_attempts.delete(self.run.name)

    def leave_run(self) -> None:
        """Forget the run and its waiting task; the present work is still finished, but its result is dropped."""
        self.change_run("")
        self._turns.leave(self)

    def welcomed(self, welcome: Welcome, epoch: int) -> None:
        about = welcome.about
        if self.run.welcomed(epoch):
            self._context.heard_file.note_time()
        self._link.peer_forms, self._link.metric_names = frozenset(about.can), about.metrics
        try:
            if missing := [form for form in about.uses if form not in forms.DEVICE_FORMS]:
                raise SettingsError(f"this device does not support {', '.join(missing)}; update its software")
            plan = plan_for(self.runner.data, welcome.plan, about.names, self.runner.plugins)
            self.runner.privacy.check(plan)
            demand_enrolment(plan, self.runner.sums)
            if about.codec:
                plan = plan.with_lossless(read_codec(about.codec, plan.variant.kinds.declared))
        except SettingsError as error:
            self._refuse_plan(error)
        else:
            self._link.kinds = plan.kinds
            self._link.apply_delta = delta_reader(plan, self._state.store)
            self._take_plan(plan)

    def _take_plan(self, plan: Plan) -> None:
        if self.run.plan == plan and self.run.plan.lossless == plan.lossless:
            self.hellos.send()
            return
        if self.run.plan is not None:
            self.change_run(self.run.name)  # A new run has the name of the old run, but another plan.
        if not self.queue.busy:
            self._begin_plan(plan)

    def _refuse_plan(self, error: Exception) -> None:
        self._link.send(Bye(f"{DisconnectReason.CANNOT_FOLLOW.value}: {error}"))
        problem = f"this device cannot follow the run's plan: {error}"
        if not self._context.leaves_run(problem):
            self._context.status.cannot_follow = True
            self._context.end(problem)

    def take(self, question: Question) -> None:
        if self.run.job is None:
            return  # The plan has no job yet. The coordinator sends the task again after the next hello.
        if answer := self._state.answer_to(question.name):
            self.deliver(answer)
        elif question.round < self._state.last_round:
            return  # The worker has already done a later round, and the update for this round was removed.
        elif self.draining or self._context.now < self.hellos.backoff.until:
            return
        elif self.queue.busy_with_another(question) or self._turns.taken_by_another(self):
            self.queue.next = question
            self._turns.wait(self)
        elif problem := self._state.cannot_answer(question.name):
            self._context.send_bye(f"{DisconnectReason.DAMAGED.value}: {problem}")
            self._context.end(problem)
        elif not self.queue.busy and self.disk_space.has_room_for_answer(question.broadcast):
            self._begin(self.run.job, question)

    def begin_next(self) -> None:
        """Take the task that has waited for its turn."""
        if question := self.queue.take_next():
            self.take(question)

    def deliver(self, answer: Answer) -> None:
        self.delivery.start(answer, self._context.now)
        self.resend()

    def deliver_last_again(self) -> None:
        """Deliver the last update again if the coordinator was started after the update was made.

        The coordinator may have been started from an older copy of its disk, in which this update is missing.
        """
        saved = self._state.saved
        if self.run.job is None or self.run.name != self._link.run:
            return  # The saved updates belong to another run.
        if self._link.epoch > saved.epoch and saved.answers and self.idle:
            self.deliver(saved.answers[-1])

    def knows(self, key: tuple[int, str]) -> bool:
        """Return whether the device has this task and no receipt for its update; `key` is the round and the phase."""
        return key == self._link.asked or self.queue.knows(key) or self.delivery.is_pending(*key)

    def resend(self) -> None:
        """Send the update that waits for its receipt, if there is one."""
        if self.awaits_receipt:
            is_known = self.run.was_welcomed_by(self._link.run, self._link.epoch)
            self.delivery.send(is_known, self._context.now)

    def _begin_plan(self, plan: Plan) -> None:
        run, epoch = self.run.name, self._link.epoch
        self.queue.begin_plan()
        self._context.worker.submit(
            lambda: self.runner.begin(plan, run, epoch), lambda job: self._plan_begun(run, plan, job)
        )

    def _plan_begun(self, run: str, plan: Plan, job: Job | Exception) -> None:
        if run != self.run.name:
            self._drop_result(job)
        elif isinstance(job, ValueError) and not isinstance(job, DamagedError):
            # For example, the device's network does not fit the method or the samples. This object may follow another
            # run later.
            self.queue.done()
            self._refuse_plan(job)
        elif isinstance(job, Exception):
            self._work_failed(job)
        else:
            self._drop_job()
            self._state.follow(run)
            self.run.start(plan, job)
            self.queue.done()
            self._link.least_round = self._state.last_round
            self._context.notify("planned", round=self._state.last_round)
            self.hellos.send()

    def _begin(self, job: Job, question: Question) -> None:
        self.queue.begin(question)
        self._turns.begin(self)
        self.run.over = False
        self._context.notify("started", round=question.round)
        run = self.run.name
        self._context.worker.submit(
            lambda: self.runner.answer(job, question, run), lambda answer: self._answered(job, answer)
        )

    def _answered(self, job: Job, answer: Answer | Exception) -> None:
        self._turns.end(self)
        if job is not self.run.job:
            self._drop_result(answer)
        elif isinstance(answer, Exception):
            self._work_failed(answer)
        else:
            self._deliver_new(answer)
        self._ended_attempts.delete(self.run.name if self.run.over else "")
        self._turns.begin_next()

    def _deliver_new(self, answer: Answer) -> None:
        self.queue.done()
        self.hellos.backoff.succeeded()
        self._link.least_round = self._state.last_round
        self.deliver(answer)
        self._context.notify("answered", round=answer.round, **figures_of(answer))
        self._state.keep_only(self._turns.needed_objects())

    def _drop_result(self, result: object) -> None:
        """Drop a result that belongs to an earlier run or plan, and send a hello to get the present plan."""
        if isinstance(result, Exception):
            expected = isinstance(result, TrainerDiedError | AuthorError | ValueError) or is_full(result)
            if isinstance(result, DamagedError) or not expected:
                raise result
            log.warning("the work for another run ended with an error: %s", result)
        log.info("the result of the last work belongs to another run or plan; the result is dropped")
        self.queue.done()
        if self.run.name:
            self.hellos.send()

    def _work_failed(self, error: Exception) -> None:
        """Handle work that ended with an error.

        The job starts again from its last state on the disk, in the same way as after a reboot.
        """
        if isinstance(error, SecaggError):
            self._refuse_step(error)
            return
        if isinstance(error, TrainerDiedError):
            self._back_off(error)
        elif is_full(error):
            self.disk_space.ran_out(str(error))
        elif isinstance(error, AuthorError | SettingsError):
            self._refuse_plan(error)  # The same error would occur again after a restart of the job.
        else:
            raise error
        self.queue.done()
        self._drop_job()

    def _refuse_step(self, error: SecaggError) -> None:
        """Log why the device does not answer a step of a masked sum. To the coordinator, the device is silent.

        A number that is too large is the exception: the operator must know of the setting, and no sum has begun.
        """
        log.error("a step of a masked sum is refused (%s): %s", error.why.value, error.detail)
        self._context.notify(f"secagg_refused.{error.why.value}", round=self._state.last_round)
        self.queue.done()
        self._state.keep_only(self._turns.needed_objects())  # The secrets of an ended attempt leave the disk.
        if error.why is SecaggFault.OUT_OF_RANGE:
            self._back_off(error)
            self._drop_job()

    def _back_off(self, error: TrainerDiedError | SecaggError) -> None:
        """Send a bye at once, so that the coordinator does not wait, and send the next hello after a pause."""
        seconds = self.hellos.back_off()
        log.error("%s; the device asks for work again in %.0f s", error, seconds)
        self._link.send(Bye(str(error)))
        self._context.notify("died", round=self._state.last_round)

    def _drop_job(self) -> None:
        self.run.drop_job()
        self.queue.next = None
        self.delivery.cancel()
        self._link.least_round = 0
        self.hellos.job_dropped()


def figures_of(answer: Answer) -> dict[str, float]:
    """Return the figures of an update for observers: seconds, and joules if they were measured."""
    found = {"seconds": answer.metrics.get("seconds.work", 0.0)}
    return found | {name: answer.metrics[name] for name in (TRAIN, SEND) if name in answer.metrics}
