"""A check that the coordinator acts on nothing, and asks nothing, that a crash would lose."""

from __future__ import annotations

from protofleet.coordinator.round.events import Advance, Command, Send
from protofleet.coordinator.run import Run
from tests.simulator.history import History
from tests.simulator.promises import demand


def observed_run(base: type[Run], history: History) -> type[Run]:
    class Observed(base):  # type: ignore[valid-type,misc]
        def write(self, command: Command) -> None:
            # The commands of a turn are said when the turn ends. By then, the round may have begun again.
            self.__dict__.setdefault("attempts", {})[id(command)] = self.machine.attempt
            super().write(command)

        def say(self, command: Command) -> None:
            attempt = self.attempts[id(command)]
            match command:
                case Advance(round, None) | Send(_, round):
                    self._begun(round, attempt)
                case Advance(round, str(phase), devices):
                    ended = history.closed.get((round, attempt, phase))
                    words = f"I2: {phase} of round {round} goes on with {devices}, and the disk says {ended}"
                    demand(ended == devices, words)
            super().say(command)

        def _begun(self, round: int, attempt: int) -> None:
            begun = (round, attempt)
            words = f"I2: round {begun[0]}.{begun[1]} goes on, and no disk knows that it has begun"
            demand(any((save.round, save.attempt) == begun for save in history.saves), words)

    return Observed
