"""The traffic and duration of the open round, which are saved so that they survive a restart.

Both are saved with every durable write, and once a minute. So a crash loses only the counts since the last save.
After a crash, the line of the round in rounds.jsonl has `resumed` = true.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from protofleet.protocol.link.meter import Meter
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.reasons import Reason


@dataclass(frozen=True)
class RoundTraffic:
    """The traffic of a round, counted by one or several coordinator processes."""

    seconds: float = 0.0
    payload: Counter[tuple[str, str]] = field(default_factory=Counter)  # (direction, kind) -> bytes.
    wire: Counter[tuple[str, str]] = field(default_factory=Counter)
    rejected: Counter[Reason] = field(default_factory=Counter)

    @staticmethod
    def of(meter: Meter, seconds: float) -> RoundTraffic:
        return RoundTraffic(seconds, meter.payload, meter.wire, meter.rejected)

    def __add__(self, other: RoundTraffic) -> RoundTraffic:
        return RoundTraffic(
            self.seconds + other.seconds, self.payload + other.payload, self.wire + other.wire,
            self.rejected + other.rejected,
        )  # fmt: skip

    def text(self) -> str:
        rejected = {reason.value: number for reason, number in sorted(self.rejected.items())}
        rows = [
            [[*place, size] for place, size in sorted(c.items()) if size] for c in (self.payload, self.wire)
        ]
        return json.dumps([round(self.seconds, 3), *rows, rejected], allow_nan=False)


def read_traffic(text: str) -> RoundTraffic:
    """Read the traffic from a row. The caller has already checked the checksum of the row."""
    try:
        seconds, payload, wire, rejected = json.loads(text)
        # Another version may store reasons that this version does not know.
        known = {reason.value for reason in Reason}
        return RoundTraffic(
            float(seconds), _counter(payload), _counter(wire),
            Counter({Reason(reason): int(number) for reason, number in rejected.items() if reason in known}),
        )  # fmt: skip
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"the saved traffic of a round is damaged: {error}") from None


def _counter(rows: list[Any]) -> Counter[tuple[str, str]]:
    return Counter({(str(direction), str(kind)): int(size) for direction, kind, size in rows})
