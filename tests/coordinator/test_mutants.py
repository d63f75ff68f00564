"""The tests of the machine are themselves tested: each fault planted here must be found by them."""

import sys
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import coordinator.machine
from tests.coordinator.test_machine import AnyWeather

SOURCE = Path(coordinator.machine.__file__).read_text()
QUICK = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

FAULTS = {
    "sends before it saves": (
        "        yield Save(self.round, self.attempt, self.cohort)\n        yield Advance(self.round, None, ())",
        "        yield Advance(self.round, None, ())",
    ),
    "forgets to make a phase durable": ("        yield Close(self.round, self.asked, self.cohort)\n", ""),
    "hands on devices in the order of a set": (
        "tuple(sorted(self._answered))  #",
        "tuple(sorted(self._answered, reverse=True))  #",
    ),
    "goes on below the quorum": (
        "if len(self._answered) < self._quorum:\n            yield from self._again",
        "if not self._answered:\n            yield from self._again",
    ),
    "takes the same answer twice": (
        "        if device in known and known[device] == event.base:\n            yield Repeat(*place)\n        elif",
        "        if",
    ),
    "takes answers from outside the cohort": ("elif device not in self.cohort:", "elif False:"),
    "ignores the deadline": ("over = self.wake_at is not None and now >= self.wake_at", "over = False"),
    "never starts again after a failed attempt": (
        "        yield Rollback()\n        yield from self._maybe_start(now)",
        "        yield Rollback()",
    ),
    "forgets a closed phase after a crash": ("        self._closed = dict(past.closed)\n", ""),
    "forgets accepted answers after a crash": (
        "        self._accepted = {phase: dict(devices) for phase, devices in past.accepted.items()}\n",
        "",
    ),
    "draws another cohort after a crash": (
        "past.round, past.attempt, past.cohort\n",
        "past.round, past.attempt, tuple(sorted(self.roster))\n",
    ),
    "keeps the old round's answers": (
        "        self._accepted, self._closed, self._answered = {}, {}, set()\n",
        "",
    ),
    "invites more than the cohort": ("max(0, min(most, len(devices)))", "len(devices)"),
    "stops one round early": (
        "if self.round > self._last_round:\n            yield Save",
        "if True:\n            yield Save",
    ),
    "talks after the end": (
        "yield Dismiss(device)\n        elif",
        "yield from self._start(now)\n        elif",
    ),
    "does not count a joined device": ("        self.roster.add(device)\n", ""),
    "waits for ever for a device that came back": (
        "            self._absent.pop(device, None)\n",
        "            pass\n",
    ),
}


def mutant(old: str, new: str) -> type:
    assert SOURCE.count(old) == 1, f"{old!r} stands {SOURCE.count(old)} times in the machine"
    module = types.ModuleType("mutant")
    sys.modules["mutant"] = module
    exec(compile(SOURCE.replace(old, new), "mutant", "exec"), module.__dict__)
    return module.RoundMachine


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    broken = type("Broken", (AnyWeather,), {"machine_class": mutant(*FAULTS[fault])})
    with pytest.raises(Exception):
        run_state_machine_as_test(broken, settings=QUICK)


def test_the_machine_without_a_fault_passes_the_same():
    run_state_machine_as_test(AnyWeather, settings=QUICK)
