"""Link one run of a coordinator to its devices: its tasks, its updates and its counts of bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from protofleet.protocol.link.admission import UnusableAnswer
from protofleet.protocol.link.answer_fetcher import AnswerFetcher, Stores
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.block_budget import Credit
from protofleet.protocol.link.inline_answer import InlineAnswer, InlineAnswers
from protofleet.protocol.link.run_to_devices import RunToDevices
from protofleet.protocol.link.task_sender import TaskSender
from protofleet.protocol.link.to_devices import LinkToDevices
from protofleet.protocol.wire.messages import BlockRequest, Offer, Update
from protofleet.protocol.wire.reasons import Rejected


class CoordinatorRunLink(RunToDevices):
    """The part of a run that sends its tasks (`tasks`) and receives its updates (`answers`)."""

    def __init__(self, party: LinkToDevices, run: str, stores: Stores) -> None:
        super().__init__(party, run)
        credit = Credit()
        self.tasks = TaskSender(self, credit)
        self.answers = AnswerFetcher(self, stores, credit, party.block_budget)
        self._inline_answers = InlineAnswers()
        # Catches the errors of the run's own files in the work for this run, so that other runs go on.
        self.scope: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        # Called with the sender of each new message.
        self.on_message: Callable[[str], None] = lambda device: None
        # Called with the device that requests blocks of a broadcast which is not served any more.
        self.on_closed_broadcast: Callable[[str], None] = lambda device: None

    @property
    def wake_at(self) -> float:
        return min(self.answers.wake_at, self.tasks.wake_at)

    def wake(self, now: float) -> None:
        self.answers.wake(now)
        self.tasks.wake(now)

    @property
    def waiting_bytes(self) -> int:
        return self.answers.waiting_bytes

    def is_expected(self, update: Update) -> bool:
        return self.answers.admission_controller.is_expected(update)

    def unusable(self, answer: UnusableAnswer) -> None:
        """Report an update that was expected and cannot be used."""
        self.on_message(answer.update.device)
        self.answers.admission_controller.unusable(answer.update, answer)

    def read_inline(self, run: str, message: Update, data: bytes) -> InlineAnswer:
        """Return an inline update; raise UnusableAnswer if the update is expected, and its arrays cannot be read."""
        try:
            return self._inline_answers.read(message, data)
        except Rejected as fault:
            if run == self.run and self.is_expected(message):
                raise UnusableAnswer(message, fault) from None
            raise

    def block_requested(self, device: str, request: BlockRequest, now: float) -> None:
        if self.tasks.requested(device, request, now):
            self.party.rate_limiter.frame_was_useful(device)
        elif not self.tasks.serves(request):
            self.on_closed_broadcast(device)

    def update_received(
        self, received: Received, update: Update, attachment: InlineAnswer | Offer, now: float
    ) -> list[Received]:  # fmt: skip
        """Return an update of this run if it is complete; otherwise fetch it, if it is admitted, and return []."""
        follows = self.answers.use_credit(update, attachment)
        if received.run != self.run:
            return []  # the update belongs to another run; a welcome informs the device of this run
        return self.answers.offered(received, update, attachment, now, follows)
