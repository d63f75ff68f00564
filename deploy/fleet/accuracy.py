"""What a change of the fleet does to accuracy, which no device alone could say: the coordinator's metrics can."""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from protofleet.deploy.errors import RunError
from protofleet.deploy.fleet.settings import Care

ROUNDS: Final = 2  # a round's end measures the model that it began with, so the next one judges its answers
POLL_SECONDS: Final = 0.5
FETCH_SECONDS: Final = 10.0
MOST_BYTES: Final = 16 << 20

Series: TypeAlias = tuple[str, str, str]  # domain, split, view


@dataclass(frozen=True, slots=True)
class Reading:
    rounds: int  # that have ended in this coordinator's process
    accuracy: dict[Series, float]


def parse_metrics(text: str) -> Reading:
    rounds, accuracy = 0, {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "protofleet_round_duration_seconds_count":
                rounds = int(sample.value)
            elif sample.name == "protofleet_accuracy_ratio":
                labels = sample.labels
                accuracy[labels["domain"], labels["split"], labels["view"]] = sample.value
    return Reading(rounds, accuracy)


def fetch_metrics(url: str) -> Reading:
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer:
            return parse_metrics(answer.read(MOST_BYTES).decode(errors="replace"))
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        words = "set care.metrics to the coordinator's, or care.accuracy_drop to 0 to go without"
        raise RunError(f"{url} says nothing of accuracy ({error}); {words}") from None


def worst_drop(before: Reading, after: Reading, most: float) -> str:
    """The worst that was lost, where it is more than may be; "" where nothing was."""
    lost = {s: value - after.accuracy[s] for s, value in before.accuracy.items() if s in after.accuracy}
    worst = max(lost, key=lambda series: lost[series], default=None)
    if worst is None or lost[worst] <= most:
        return ""
    domain, split, view = worst
    was, now = before.accuracy[worst], after.accuracy[worst]
    return f"accuracy of {domain} ({split}, {view}) has fallen from {was:.3f} to {now:.3f}, by more than {most:g}"


def missing_domains(before: Reading, after: Reading) -> str:
    """What could not be judged; "" where all could. No reason to stop: devices are not in every cohort."""
    missing = sorted({domain for domain, _, _ in before.accuracy.keys() - after.accuracy.keys()})
    return f"accuracy of {', '.join(missing)} is not shown any more, and was not judged" if missing else ""


@dataclass
class AccuracyCheck:
    """Knows how things were before the first wave."""

    care: Care
    look: Callable[[str], Reading] = fetch_metrics
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _before: Reading | None = field(default=None, init=False)

    def begin(self) -> None:
        if self.care.accuracy_drop:
            self._before = self.look(self.care.metrics)

    def verdict(self) -> tuple[bool, str]:
        """Whether the next wave may come, and what there is to say, once enough rounds have ended."""
        if self._before is None:
            return True, ""
        now, ended, began = self.look(self.care.metrics), 0, self.clock()
        while ended < ROUNDS:
            if self.clock() - began > self.care.soak_seconds:
                words = f"{ROUNDS} rounds have not ended within {self.care.soak_seconds:g} s: accuracy was not judged"
                return True, words
            self.sleep(POLL_SECONDS)
            then, now = now, self.look(self.care.metrics)
            ended += now.rounds != then.rounds  # it counts from 0 again when it was started again
        if words := worst_drop(self._before, now, self.care.accuracy_drop):
            return False, words
        return True, missing_domains(self._before, now)
