"""How long to wait before one more try."""

from __future__ import annotations

import random


def pause(tries: int, shortest: float, longest: float, dice: random.Random) -> float:
    """Twice as long each time, and drawn: a fleet that fails together must not come back together."""
    return min(longest, shortest * 2.0 ** min(tries, 30)) * dice.uniform(0.5, 1.0)
