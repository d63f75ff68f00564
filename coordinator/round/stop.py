"""The rule that ends a run before its last round. The rule uses the validation accuracies so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protofleet.coordinator.round.policy import Stop

MOST_ROUNDS_BACK: Final = (
    3  # A run can go back only this many rounds, because a spool keeps no more checkpoints.
)


@dataclass
class StopRule:
    """The rule of `policy.stop`, with the measurements that it still needs."""

    settings: Stop | None
    # Round -> validation accuracy that was known at the end of the round.
    measured: dict[int, float] = field(default_factory=dict)

    def restore(self, measured: Mapping[int, float], before: int) -> None:
        """Keep only the measurements of the rounds below `before`."""
        self.measured = {number: value for number, value in sorted(measured.items()) if number < before}

    def note(self, number: int, accuracy: float) -> str:
        """Record the accuracy of a round; return the reason if the run ends now, or "" if the run goes on."""
        self.measured[number] = accuracy
        self._forget_what_no_decision_needs(number)
        assert self.settings is not None, "without policy.stop nothing is measured for it"
        target, patience = self.settings.accuracy, self.settings.patience
        if target and accuracy >= target:
            return f"validation accuracy is {accuracy:.4f}, policy.stop.accuracy is {target:g}"
        best = self._best(self.measured)
        since = sum(1 for other in self.measured if other > best)
        if patience and since >= patience:
            words = f"{since} evaluations in a row were" if since > 1 else "1 evaluation was"
            return (
                f"{words} not better than the validation accuracy "
                f"{self.measured[best]:.4f} of round {best}, policy.stop.patience is {patience}"
            )
        return ""

    @property
    def oldest(self) -> int:
        """Return the first round whose measurement is still needed."""
        return min(self.measured, default=0)

    def _best(self, measured: Mapping[int, float]) -> int:
        """Return the round with the best accuracy; if several are equally good, the first of them."""
        return max(sorted(measured), key=measured.__getitem__)

    def _forget_what_no_decision_needs(self, number: int) -> None:
        """Forget the measurements that no later decision needs, because a run may have a million rounds.

        Measurements before the best measurement cannot change a decision any more.
        """
        old = {n: value for n, value in self.measured.items() if n <= number - MOST_ROUNDS_BACK}
        if old:
            patient = self.settings is not None and self.settings.patience > 0
            first = self._best(old) if patient else max(old)
            self.measured = {n: value for n, value in self.measured.items() if n >= first}
