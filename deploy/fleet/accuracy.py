"""Check whether a change has lowered the accuracy of the fleet.

The check reads the coordinator's metrics, because a device does not know the accuracy of the fleet.
"""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection
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

# The domain, the split and the view of a measured accuracy, and the run ("" at a coordinator of one run).
Series: TypeAlias = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class MetricsReading:
    rounds: dict[str, int]  # Run -> the last round in which all its present devices measured the accuracy.
    accuracy: dict[Series, float]

    def of(self, runs: Collection[str]) -> MetricsReading:
        """Return the part of the reading that belongs to these runs."""
        rounds = {run: round for run, round in self.rounds.items() if run in runs}
        return MetricsReading(rounds, {s: value for s, value in self.accuracy.items() if s[-1] in runs})


def parse_metrics(text: str) -> MetricsReading:
    """Read the accuracy of the runs that are not over."""
    rounds, accuracy, over = {}, {}, set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels, run = sample.labels, sample.labels.get("run", "")
            if sample.name == "protofleet_accuracy_round":
                rounds[run] = int(sample.value)
            elif sample.name == "protofleet_accuracy_ratio":
                accuracy[labels["domain"], labels["split"], labels["view"], run] = sample.value
            elif sample.name == "protofleet_run_over" and run and sample.value:
                over.add(run)
    return MetricsReading(rounds, accuracy).of(rounds.keys() - over)


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
    domain, split, view, run = worst
    was, now = before.accuracy[worst], after.accuracy[worst]
    where = ", ".join(filter(None, (split, view, run)))
    return f"accuracy of {domain} ({where}) has fallen from {was:.3f} to {now:.3f}, by more than {allowed:g}"


def missing_domains(before: MetricsReading, after: MetricsReading) -> str:
    """Return a message about the domains that are no longer measured, or "".

    A missing domain does not stop the rollout, because its devices may be outside the present cohort.
    """
    missing = sorted({domain for domain, *_ in before.accuracy.keys() - after.accuracy.keys()})
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

        This method waits until all devices have measured the accuracy two times (the constant `TIMES`) in each run
        that goes on, but at most `care.soak_seconds`.
        """
        if self._baseline is None:
            return True, ""
        now, ended, started_at = self.fetch(self.care.metrics), Counter[str](), self.clock()
        while any(ended[run] < TIMES for run in self._both(now)):
            if self.clock() - started_at > self.care.soak_seconds:
                limit = f"{self.care.soak_seconds:g} s"
                return (
                    True,
                    f"some devices have not measured {TIMES} times within {limit}: accuracy was not judged",
                )
            self.sleep(POLL_SECONDS)
            before, now = now, self.fetch(self.care.metrics)
            ended.update(run for run, round in now.rounds.items() if before.rounds.get(run) != round)
        before, now = self._baseline.of(self._both(now)), now.of(self._both(now))
        if message := worst_drop(before, now, self.care.accuracy_drop):
            return False, message
        return True, missing_domains(before, now)

    def _both(self, now: MetricsReading) -> Collection[str]:
        """Return the runs of the baseline that still go on."""
        assert self._baseline is not None
        return self._baseline.rounds.keys() & now.rounds.keys()
