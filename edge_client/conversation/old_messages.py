"""Whether a refusal, or the message that a run is over, counts: a broker or a session may have kept an old one."""

from __future__ import annotations

from typing import Final

from protofleet.protocol.wire.messages import Refusal

CONFIRM_SECONDS: Final = 2.0  # what a broker had kept has come by then
# Without another message, after which a run counts as over that an earlier start took part in.
OVER_SECONDS: Final = 30.0


class RefusalCheck:
    """Whether a refusal counts.

    At once where it says which hello it answers, and that is the last one. One that does not say so counts when the
    next hello is refused too: the first may be an old one that a session has kept.
    """

    def __init__(self) -> None:
        self.ask_at = float("inf")  # when to say the hello that shall tell
        self._asked = False
        self._last: tuple[int, int] = (0, 0)  # boot and sequence of the last hello

    def counts(self, refusal: Refusal, now: float) -> bool:
        if refusal.answers:
            return refusal.answers == self._last
        if self.ask_at == float("inf"):
            self.ask_at = now + CONFIRM_SECONDS
        return self._asked

    def hello_sent(self, boot: int, sequence: int, now: float) -> None:
        self._last = (boot, sequence)
        self._asked |= now >= self.ask_at

    def contradicted(self) -> None:
        """The coordinator works with this device."""
        self.ask_at, self._asked = float("inf"), False


class RunEndCheck:
    """When the message counts that a run is over.

    At once where this process holds the run's plan. Not where its end is known already: whoever is started after that
    waits for the next run. Where an earlier start took part in it and never heard of its end, the message may be an
    old one that somebody kept, so a while is left in which another may come.
    """

    def __init__(self) -> None:
        self._run, self.at = "", float("inf")

    def heard(self, run: str, known: str, held: bool, over: str, now: float) -> bool:
        """Whether it counts now. `known`: the run that the device has taken part in; `over`: whose end it knows."""
        if run != known or not run:
            return False
        if not held and run != over and self._run != run:
            self._run, self.at = run, now + OVER_SECONDS
        return held

    def contradicted(self) -> None:
        """The coordinator has said something else."""
        self._run, self.at = "", float("inf")
