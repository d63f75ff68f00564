"""An answer on its way: it is said again until the coordinator says what became of it."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from protofleet.edge_client.state.file import Answer
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.wire.messages import Receipt, Update

log = logging.getLogger("protofleet.device")

RESEND_SECONDS: Final = 5.0  # before an answer without receipt is said again; doubles up to the longest
LONGEST_RESEND_SECONDS: Final = 60.0


@dataclass
class Outgoing:
    """An answer that waits for its receipt."""

    answer: Answer
    again_at: float
    patience: float = RESEND_SECONDS

    @property
    def asked(self) -> tuple[int, str]:
        """The round and the phase."""
        return self.answer.round, self.answer.phase

    def update(self, device: str) -> Update:
        a = self.answer
        return Update(device, a.round, a.phase, a.examples, bytes.fromhex(a.base), {}, a.metrics)

    def said(self, now: float) -> None:
        self.again_at = now + self.patience
        self.patience = min(2 * self.patience, LONGEST_RESEND_SECONDS)


class AnswerDelivery:
    def __init__(self, link: DeviceLink) -> None:
        self._link = link
        self.waiting: Outgoing | None = None
        self.receipts: Counter[str] = Counter()  # of this process, by verdict

    @property
    def wake_at(self) -> float:
        return self.waiting.again_at if self.waiting else float("inf")

    def holds(self, round: int, phase: str) -> bool:
        return self.waiting is not None and self.waiting.asked == (round, phase)

    @property
    def largest_object(self) -> int:
        """Bytes of what the coordinator may fetch for the answer that waits; 0 where it has no arrays."""
        name = bytes.fromhex(self.waiting.answer.object) if self.waiting else b""
        return self._link.store.size(name) if name else 0

    def begin(self, answer: Answer, now: float) -> None:
        self.waiting = Outgoing(answer, now)

    def say(self, plan_is_known: bool, now: float) -> None:
        """Only to a coordinator whose plan is known: it may be of another run, or plan, under the same name."""
        if self.waiting is None:
            return
        if not plan_is_known:
            self.waiting.again_at = now + RESEND_SECONDS
            return
        a = self.waiting.answer
        log.info("round %d %s: answer %s", a.round, a.phase, a.object)
        try:
            self._link.send_update(self.waiting.update(self._link.me.name), bytes.fromhex(a.object))
        except BrokerError as error:
            self._link.reject_connection(error)
        self.waiting.said(now)

    def received(self, receipt: Receipt) -> bool:
        """Whether that is the receipt of the answer that waits."""
        if self.waiting is None or not self.holds(receipt.round, receipt.phase):
            return False
        self._link.forget(bytes.fromhex(self.waiting.answer.object))
        self.waiting = None
        self.receipts[receipt.verdict] += 1
        return True

    def cancel(self) -> None:
        self.waiting = None
