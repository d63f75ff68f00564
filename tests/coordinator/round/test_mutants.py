"""Each fault that is planted in the machine here must be found by the tests of the machine."""

import inspect
import sys
import types
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import protofleet.coordinator.round.cohort
import protofleet.coordinator.round.machine
import protofleet.coordinator.round.silence
import protofleet.coordinator.round.stragglers
import protofleet.coordinator.round.trials
import protofleet.coordinator.round.verdicts
from tests.coordinator import test_bad_weather
from tests.coordinator.round import test_machine
from tests.coordinator.round.test_machine import AnyWeather

PARTS = (
    protofleet.coordinator.round.machine,
    protofleet.coordinator.round.cohort,
    protofleet.coordinator.round.silence,
    protofleet.coordinator.round.stragglers,
    protofleet.coordinator.round.trials,
    protofleet.coordinator.round.verdicts,
)
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
    "accepts a server step that it has not requested": (
        "            Answered: _answer,\n            Woke:",
        "            Answered: _answer,\n            Advanced: _advance,\n            Woke:",
    ),
    "changes its state before it refuses an event": (
        "        if handler is None:\n",
        "        if handler is None:\n            self.attempt += 1\n",
    ),
    "sends before it saves": (
        "        yield Save(self.round, self.attempt, self.cohort)\n        yield self._first_step()",
        "        yield self._first_step()",
    ),
    "forgets to make a phase durable": ("        yield Close(self.round, self.asked, self.cohort)\n", ""),
    "passes on devices without sorting them": (
        "tuple(sorted(self._answered))  #",
        "tuple(sorted(self._answered, reverse=True))  #",
    ),
    "continues below the quorum": (
        "if len(self._answered) < self._quorum and not self._final:\n            yield from self._repeat_round",
        "if not self._answered:\n            yield from self._repeat_round",
    ),
    "accepts the same answer twice": (
        "            or self._was_accepted(event)\n            or device",
        "            or device",
    ),
    "asks a refused device again": (
        "refuse(device, event.problem)\n            self._missing.discard(device)\n",
        "refuse(device, event.problem)\n",
    ),
    "forgets which devices were refused": ("        self.refused[device] = problem\n", ""),
    "accepts answers from outside the cohort": ("elif not self.was_asked(device):", "elif False:"),
    "ignores the deadline": ("over = wake_at is not None and now >= wake_at", "over = False"),
    "never starts again after a failed attempt": (
        "        yield Rollback(why, missing)\n        yield from self._maybe_start(now)",
        "        yield Rollback(why, missing)",
    ),
    "forgets a closed phase after a crash": ("        self._closed = dict(past.closed)\n", ""),
    "forgets accepted answers after a crash": (
        "        self.verdicts.begin_round(past.accepted, past.late)\n",
        "",
    ),
    "draws another cohort after a crash": (
        "past.round, past.attempt, past.cohort\n",
        "past.round, past.attempt, tuple(sorted(self.roster))\n",
    ),
    "keeps the answers of the round before": (
        "        self.begin_round({})\n",
        "",
    ),
    "invites more than the cohort": ("max(0, min(most, len(devices)))", "len(devices)"),
    "stops one round early": (
        "if self.round > self._last_round:\n            yield Save",
        "if True:\n            yield Save",
    ),
    "starts a round after the end": (
        "yield Dismiss(event.device)",
        "yield from self._start(now)",
    ),
    "does not count a joined device": ("        self.roster.add(event.device)\n", ""),
    "waits for ever for a device that came back": (
        "            self._absent.pop(event.device, None)\n",
        "            pass\n",
    ),
    "lets half of the cohort set the deadline": ("cohort // 2 + 1", "(cohort + 1) // 2"),
    "waits for devices that have answered": (
        "_answered.add(device)\n            self._missing.discard(device)\n            self.verdicts",
        "_answered.add(device)\n            self.verdicts",
    ),
    "forgets the waiting time of an earlier process": ("now - (earlier or 0.0)", "now"),
    "measures the time of an answer from the repeated task": (
        "self._began.setdefault((question, device), now - (earlier or 0.0))",
        "self._began[question, device] = now - (earlier or 0.0)",
    ),
    "delays the end for silent devices": (
        "        quorum = 0 if self._quorum_is_unreachable else self._quorum\n",
        "        quorum = 0 if self._quorum_is_unreachable else 99 if self.evaluating else self._quorum\n",
    ),
    "waits for a silent device": (
        "        self._absent |= dict.fromkeys(silent, now - self.policy.grace_seconds)\n",
        "",
    ),
    "waits again for a silent device that sends a hello": (
        " and event.device not in self.silent.devices:",
        ":",
    ),
    "draws a silent device like any other device": (
        "steady = (self._reliable(now) - self.silent.devices)",
        "steady = self._reliable(now)",
    ),
    "never asks a silent device again": ("return tuple(waiting[:1])", "return ()"),
    "ends the silence of a device with an old answer": (
        "if question not in self._asked.get(device, ()):",
        "if device not in self._asked:",
    ),
    "never repeats a round without one of its answers": ("FAILURES: Final = 2", "FAILURES: Final = 99"),
    "forgets after a crash which answers were left out": (
        "        self.trials.resume(past.tried)\n",
        "",
    ),
    "never uses an answer again that was left out without success": (
        "{*past.closed[phase], *known.intersection(returned)}",
        "{*past.closed[phase]}",
    ),
}


def mutant(old: str, new: str) -> type:
    """Return the class of the machine with the fault, in its own module or in a module of a part."""
    sources = {part.__name__: Path(part.__file__).read_text() for part in PARTS}
    (faulty,) = [name for name, source in sources.items() if source.count(old) == 1]
    broken = types.ModuleType(faulty)
    with mock.patch.dict(sys.modules, {faulty: broken}):
        exec(compile(sources[faulty].replace(old, new), "mutant", "exec"), broken.__dict__)
        machine = types.ModuleType("protofleet.coordinator.round.machine")
        sys.modules["protofleet.coordinator.round.machine"] = machine
        if faulty == "protofleet.coordinator.round.machine":
            machine = broken
        else:
            exec(
                compile(sources["protofleet.coordinator.round.machine"], "machine", "exec"), machine.__dict__
            )
    return machine.RoundMachine


def machine_tests():
    """Yield the tests of the machine that take no fixture."""
    for module in (test_machine, test_bad_weather):
        for name, test in vars(module).items():
            if name.startswith("test_") and not inspect.signature(test).parameters:
                yield test


def is_found(broken: type) -> bool:
    """Tell whether a test of the machine or random events find the fault."""
    with mock.patch.object(test_machine, "RoundMachine", broken):
        try:
            for machine_test in machine_tests():
                machine_test()
            run_state_machine_as_test(
                type("Broken", (AnyWeather,), {"machine_class": broken}), settings=QUICK
            )
        except Exception:  # noqa: BLE001 - an AssertionError, or any other error that the fault causes
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    assert is_found(mutant(*FAULTS[fault]))


@pytest.mark.slow
def test_a_compiled_machine_without_a_fault_passes():
    """A compiled machine belongs to another module, and this alone must not make a test fail."""
    assert not is_found(mutant("# the devices of the first phase must answer", "# they must answer"))
