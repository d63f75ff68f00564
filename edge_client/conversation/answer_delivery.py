"""The delivery of an update: the device sends the update again until the coordinator's receipt arrives."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from protofleet.edge_client.state.file import Answer
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.link.meter import human_bytes
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.wire.messages import Receipt, Update
from protofleet.runtime.logs import fields

log = logging.getLogger("protofleet.device")

RESEND_SECONDS: Final = 5.0  # first pause before an update is sent again; each later pause is twice as long
LONGEST_RESEND_SECONDS: Final = 60.0
# If the receipt of the last update took t seconds, the first pause is at least this factor times t, but at most
# LONGEST_RESEND_SECONDS. With shorter pauses, the repeated updates would make a slow coordinator slower.
RECEIPT_FACTOR: Final = 4.0
# The first part of metric names such as "accuracy.test.global"; the last part names the evaluated model.
ACCURACY: Final = "accuracy.test."


@dataclass
class PendingAnswer:
    """An update that waits for its receipt."""

    answer: Answer
    resend_at: float
    pause_seconds: float = RESEND_SECONDS
    first_sent_at: float | None = None

    @property
    def key(self) -> tuple[int, str]:
        """Return the round and the phase of the update's task."""
        return self.answer.round, self.answer.phase

    def update(self, device: str) -> Update:
        a = self.answer
        return Update(device, a.round, a.phase, a.examples, bytes.fromhex(a.base), {}, a.metrics)

    def sent(self, now: float) -> None:
        if self.first_sent_at is None:
            self.first_sent_at = now
        self.resend_at = now + self.pause_seconds
        self.pause_seconds = min(2 * self.pause_seconds, LONGEST_RESEND_SECONDS)


class AnswerDelivery:
    def __init__(self, link: DeviceLink) -> None:
        self._link = link
        self.pending: PendingAnswer | None = None
        # Number of receipts that this process has received, by verdict.
        self.receipts: Counter[str] = Counter()
        self._receipt_seconds = 0.0  # seconds from the first transmission of the last update to its receipt

    @property
    def wake_at(self) -> float:
        return self.pending.resend_at if self.pending else float("inf")

    def is_pending(self, round: int, phase: str) -> bool:
        return self.pending is not None and self.pending.key == (round, phase)

    @property
    def largest_object(self) -> int:
        """Return the size in bytes of the pending update's arrays, which the coordinator may fetch.

        Return 0 if no update is pending, or if the update has no arrays.
        """
        name = bytes.fromhex(self.pending.answer.object) if self.pending else b""
        return self._link.store.size(name) if name else 0

    def start(self, answer: Answer, now: float) -> None:
        pause = min(max(RESEND_SECONDS, RECEIPT_FACTOR * self._receipt_seconds), LONGEST_RESEND_SECONDS)
        self.pending = PendingAnswer(answer, now, pause)

    def send(self, plan_is_known: bool, now: float) -> None:
        """Send the pending update, but only if the coordinator has sent its plan to this device (`plan_is_known`).

        A coordinator that has not sent its plan may work on another run, or on a run with this name but another
        plan.
        """
        if self.pending is None:
            return
        if not plan_is_known:
            self.pending.resend_at = now + RESEND_SECONDS
            return
        a = self.pending.answer
        log.info("round %d %s: sending the update %s", a.round, a.phase, a.object)
        try:
            self._link.send_update(self.pending.update(self._link.me.name), bytes.fromhex(a.object))
        except BrokerError as error:
            self._link.reject_connection(error)
        self.pending.sent(now)

    def received(self, receipt: Receipt, now: float) -> bool:
        """Handle a receipt, and return whether it belongs to the pending update."""
        if self.pending is None or not self.is_pending(receipt.round, receipt.phase):
            return False
        if self.pending.first_sent_at is not None:
            self._receipt_seconds = now - self.pending.first_sent_at
        log_receipt(self.pending.answer, self.largest_object, receipt)
        self._link.forget(bytes.fromhex(self.pending.answer.object))
        self.pending = None
        self.receipts[receipt.verdict] += 1
        return True

    def cancel(self) -> None:
        self.pending = None


def log_receipt(answer: Answer, size: int, receipt: Receipt) -> None:
    """Log one line about an update: its time, size and accuracy, or the reason why it was not accepted."""
    accuracy = {name: value for name, value in answer.metrics.items() if name.startswith(ACCURACY)}
    seconds = answer.metrics.get("seconds.work", 0.0)
    figures = fields(
        event="answered", round=answer.round, phase=answer.phase, seconds=seconds, bytes=size,
        verdict=receipt.verdict, reason=receipt.reason, **accuracy,
    )  # fmt: skip
    if receipt.verdict != "accepted":
        log.warning(
            "round %d %s: the update is %s: %s",
            answer.round, answer.phase, receipt.verdict, receipt.reason, extra=figures,
        )  # fmt: skip
        return
    measured = "".join(
        f", accuracy {value:.1%} ({name[len(ACCURACY) :]})" for name, value in accuracy.items()
    )
    log.info(
        "round %d %s: the update is accepted: %.1f s of work, %s%s",
        answer.round, answer.phase, seconds, human_bytes(size), measured, extra=figures,
    )  # fmt: skip
