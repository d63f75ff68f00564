"""Check whether a change has lowered the accuracy of the fleet.

The check reads the coordinator's metrics, because a device does not know the accuracy of the fleet.
"""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from protofleet.deploy.fleet.settings import RolloutSettings
from protofleet.runtime.command.errors import RunError

# Number of measurements to wait for. Each round measures the model at the start of the round. So
# the updates of a round change only the measurement of the next round.
TIMES: Final = 2
POLL_SECONDS: Final = 0.5
FETCH_SECONDS: Final = 10.0
MAX_BYTES: Final = 16 << 20

# The domain, the split and the view of a measured accuracy.
Series: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class MetricsReading:
    rounds: int  # The number of the last round in which all present devices measured the accuracy.
    accuracy: dict[Series, float]


def parse_metrics(text: str) -> MetricsReading:
    rounds, accuracy = 0, {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "protofleet_accuracy_round":
                rounds = int(sample.value)
            elif sample.name == "protofleet_accuracy_ratio":
                labels = sample.labels
                accuracy[labels["domain"], labels["split"], labels["view"]] = sample.value
    return MetricsReading(rounds, accuracy)


def fetch_metrics(url: str) -> MetricsReading:
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer:
            return parse_metrics(answer.read(MAX_BYTES).decode(errors="replace"))
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        way_out = "set care.metrics to the URL of its metrics, or care.accuracy_drop to 0 to skip the check"
        raise RunError(f"{url} has no metrics of accuracy ({error}); {way_out}") from None


def worst_drop(before: MetricsReading, after: MetricsReading, allowed: float) -> str:
    """Return a message about the largest drop of accuracy if this drop is larger than `allowed`; else ""."""
    lost = {s: value - after.accuracy[s] for s, value in before.accuracy.items() if s in after.accuracy}
    worst = max(lost, key=lambda series: lost[series], default=None)
    if worst is None or lost[worst] <= allowed:
        return ""
    domain, split, view = worst
    was, now = before.accuracy[worst], after.accuracy[worst]
    return f"accuracy of {domain} ({split}, {view}) has fallen from {was:.3f} to {now:.3f}, by more than {allowed:g}"


def missing_domains(before: MetricsReading, after: MetricsReading) -> str:
    """Return a message about the domains that are no longer measured, or "".

    A missing domain does not stop the rollout, because its devices may be outside the present cohort.
    """
    missing = sorted({domain for domain, _, _ in before.accuracy.keys() - after.accuracy.keys()})
    return f"accuracy of {', '.join(missing)} is no longer measured, and was not judged" if missing else ""


@dataclass
class AccuracyCheck:
    """The comparison of the present accuracy with the accuracy before the first wave."""

    care: RolloutSettings
    fetch: Callable[[str], MetricsReading] = fetch_metrics
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _baseline: MetricsReading | None = field(default=None, init=False)

    def record_baseline(self) -> None:
        if self.care.accuracy_drop:
            self._baseline = self.fetch(self.care.metrics)

    def judge(self) -> tuple[bool, str]:
        """Return whether the next wave may follow, and the reason.

        This method waits until all devices have measured the accuracy two times (the constant `TIMES`), but at
        most `care.soak_seconds`.
        """
        if self._baseline is None:
            return True, ""
        now, ended, started_at = self.fetch(self.care.metrics), 0, self.clock()
        while ended < TIMES:
            if self.clock() - started_at > self.care.soak_seconds:
                limit = f"{self.care.soak_seconds:g} s"
                return (
                    True,
                    f"some devices have not measured {TIMES} times within {limit}: accuracy was not judged",
                )
            self.sleep(POLL_SECONDS)
            before, now = now, self.fetch(self.care.metrics)
            ended += now.rounds != before.rounds
        if message := worst_drop(self._baseline, now, self.care.accuracy_drop):
            return False, message
        return True, missing_domains(self._baseline, now)
