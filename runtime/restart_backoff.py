"""Decide when a program that has ended with an error is started again.

The pause before a start grows with each failure. After a long run of the program, the pause is short again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 60.0
STABLE_SECONDS: Final = 60.0  # After a run longer than this, the next pause is FIRST_SECONDS.


@dataclass
class RestartBackoff:
    seconds: float = FIRST_SECONDS
    failures: int = 0  # Number of failures in a row.

    def failed(self, ran_seconds: float) -> float:
        """Count a failure, and return the seconds until the next start."""
        stable = ran_seconds > STABLE_SECONDS
        self.failures = 1 if stable else self.failures + 1
        self.seconds = FIRST_SECONDS if stable else min(LONGEST_SECONDS, 2 * self.seconds)
        return self.seconds
