"""A run that is stopped, gets one or two damaged files, and is started again; and the result."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from tests.crash.world import Crashing, Outcome, crashing, outcome

METHODS: Final = ("fedavg", "fedpall", "fedplcc")
PARTIES: Final = ("coordinator", "device-1")  # One device represents all.
SAME, STOPPED, FEWER, OTHER = "same bits", "stopped", "a line less, and said", "OTHER BITS"


def flipped(share: float) -> Callable[[bytes], bytes]:
    """Return a damage that flips one bit at this share of the length of the file."""

    def flip(data: bytes) -> bytes:
        at = min(len(data) - 1, int(share * len(data)))
        bit = 1 << random.Random(f"{share}/{len(data)}").randrange(8)
        return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] if data else b""

    return flip


DAMAGE: Final[dict[str, Callable[[bytes], bytes] | None]] = {
    **{f"flipped at {share:.0%}": flipped(share) for share in (0.0, 0.03, 0.3, 0.6, 0.97)},
    "cut by a byte": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "removed": None,
}
TOGETHER: Final = ("flipped at 30%", "cut in half", "removed")
MOMENTS: Final[dict[str, Callable[[Crashing], bool]]] = {
    "a round has just begun": lambda run: asked(run, 2, "train") and not run.service.run.machine.answered,
    "an answer comes in blocks": lambda run: asked(run, 2, "train") and half_an_answer(run),
    "an answer is in": lambda run: asked(run, 2, "train") and bool(run.service.run.machine.answered),
    "its answer is in": lambda run: asked(run, 2, "train") and "device-1" in run.service.run.machine.answered,
    "the device has answered": lambda run: run.agents["device-1"].state.last_round == 2,
    "the second phase": lambda run: asked(run, 2, "mix") and bool(run.service.run.machine.answered),
    "the evaluation": lambda run: asked(run, 3, "evaluate"),
}


def half_an_answer(run: Crashing) -> bool:
    return any((run.folder / "coordinator").glob("updates/*/*.part"))


def asked(run: Crashing, number: int, phase: str) -> bool:
    return (run.service.run.machine.round, run.service.run.machine.asked) == (number, phase)


def moments(method: str) -> list[str]:
    return [name for name in MOMENTS if method == "fedpall" or name != "the second phase"]


@functools.cache
def unbroken(method: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return outcome(crashing(Path(folder), method, serves={}).live())


@functools.cache
def stopped(method: str, moment: str) -> Path:
    """Return the files of a run whose parties were all killed at this moment.

    The folder is deleted when the process ends.
    """
    folder = Path(scratch().name) / method / moment.replace(" ", "-")
    run = crashing(folder, method, serves={})
    run.run(until=lambda: MOMENTS[moment](run))
    run.kill_all()
    for shelf in folder.glob("*.shelf"):
        shutil.rmtree(shelf)
    return folder


@functools.cache
def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@dataclass(frozen=True)
class Case:
    method: str
    moment: str
    file: str  # The name of the file; a number replaces a random name.
    damage: str
    second: str = ""  # A second file, damaged in the same way.

    def paths(self) -> list[Path]:
        known = dict(files(self.method, self.moment))
        return [known[name] for name in (self.file, self.second) if name]


def files(method: str, moment: str) -> Iterator[tuple[str, Path]]:
    """Yield each file of the stopped run: its name in these tests, and its place in the folder."""
    folder, seen = stopped(method, moment), dict[str, int]()
    for party in PARTIES:
        for path in sorted(
            (folder / party).rglob("*"), key=lambda p: (p.parent, p.stat().st_mtime_ns, p.name)
        ):
            if path.is_file():
                place = str(
                    path.relative_to(folder).parent
                    / (f"*{path.suffix}" if len(path.stem) == 64 else path.name)
                )
                seen[place] = seen.get(place, 0) + 1
                yield f"{place} {seen[place]}", path.relative_to(folder)


def every_case(methods: tuple[str, ...] = METHODS) -> Iterator[Case]:
    for method in methods:
        for moment in moments(method):
            for name, _ in files(method, moment):
                for damage in DAMAGE:
                    yield Case(method, moment, name, damage)


def every_pair(methods: tuple[str, ...] = METHODS) -> Iterator[Case]:
    """Yield cases that damage two files of the device at once."""
    for method in methods:
        for moment in moments(method):
            of_device = [name for name, _ in files(method, moment) if name.startswith("device-1/")]
            for first, second in itertools.combinations(of_device, 2):
                for damage in TOGETHER:
                    yield Case(method, moment, first, damage, second)


def verdict(case: Case) -> tuple[str, str]:
    """Return the result of a case, and the messages that were logged meanwhile."""
    with tempfile.TemporaryDirectory() as place, said() as words:
        folder = Path(place) / "run"
        shutil.copytree(stopped(case.method, case.moment), folder)
        for path in case.paths():
            spoil(folder / path, DAMAGE[case.damage])
        try:
            run = crashing(folder, case.method, serves={}).live()
            if problems := [agent.view.problem for agent in run.agents.values() if agent.view.problem]:
                return STOPPED, problems[0]
            found = outcome(run)
        except (DamagedError, NewerFormatError) as error:
            return STOPPED, str(error)
    return compared(found, unbroken(case.method), words)


def compared(found: Outcome, honest: Outcome, words: list[str]) -> tuple[str, str]:
    """Compare a run with the undamaged run; a process that began in round 2 has no counted answers of round 1."""
    told = "; ".join(words)
    counted = {place: answers for place, answers in honest.counted.items() if place in found.counted}
    rounds = [line for line in honest.rounds if line["round"] in {line["round"] for line in found.rounds}]
    if differences := list(found.differences(replace(honest, counted=counted, rounds=rounds))):
        return OTHER, f"{'; '.join(differences)[:300]}; SAID: {told}"
    if len(rounds) == len(honest.rounds):
        return SAME, told
    return (FEWER if "rounds.jsonl lacks the lines of rounds" in told else OTHER), told


def spoil(path: Path, damage: Callable[[bytes], bytes] | None) -> None:
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))


@contextlib.contextmanager
def said() -> Iterator[list[str]]:
    """Yield the list of warnings and errors that the coordinator and the devices log."""
    words: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.append(record.getMessage())

    keep, logger = Keep(logging.WARNING), logging.getLogger("protofleet")
    logger.addHandler(keep)
    try:
        yield words
    finally:
        logger.removeHandler(keep)
