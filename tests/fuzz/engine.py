"""A small mutational fuzzer: it changes good inputs a little, and changes inputs with new outcomes further.

It uses no instrumentation, so it makes some ten thousand inputs a second. An outcome is the word that a
target returns, or the first letters of its error without figures. That is enough to get from "not an envelope" into
the fields of a header.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import resource
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.targets import Target

CORPUS = Path(__file__).parent / "corpus"
MOST_KEPT = 400  # The most inputs of a target that are kept for further changes.
LONGEST = 4096  # The most bytes of an input; longer inputs would find nothing new.
SLOW_SECONDS = 0.05  # An input is slow if it takes longer than this three times in a row.
MEMORY = 96 << 20  # Bytes by which the process may grow over all inputs.
TIMES = 4  # A reader may use this many times the bytes of the input and of its result, and ROOM in addition.
ROOM = 256 << 10  # Bytes for streams that are unpacked in pieces, and for objects of Python.
SAMPLED = 256  # One of this many inputs, and each input that is not fast, is run again to measure its memory.
NOT_FAST_SECONDS = 0.005
DIGITS = re.compile(r"\d+")
ODD = (
    b"\x00", b"\xff", b"\x7f", b"\x80", b"\x90", b"\xc0", b"\xc1", b"\x9f\xff", b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7), b"\xcb\x7f\xf8" + bytes(6), b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\x91" * 40, b"[" * 60,
    b"\xa1\xff", b"\xc4\x00", b"1" * 30, b"1e999", b"-1", b"NaN", b"null", b'""', b"\xed\xa0\x80", b"\n", b"\\u0000",
)  # fmt: skip


@dataclass
class Finding:
    data: bytes
    words: str


@dataclass
class Report:
    inputs: int = 0
    taken: int = 0  # Inputs that were read to their end.
    measured: int = 0  # Inputs whose memory was measured.
    outcomes: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)


def kept(name: str) -> list[bytes]:
    """Return the inputs of earlier findings; every run tries each of them."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def keep(name: str, data: bytes) -> Path:
    path = CORPUS / name / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def fuzz(name: str, target: Target, inputs: int, seed: int) -> Report:
    report, dice = Report(), random.Random(f"{seed}/{name}")
    pool = [*target.seeds(), *kept(name)]
    before = memory()
    for data in stream(pool, dice, inputs):
        # The time of this thread: on a busy machine, an input that only waited is not slow, and to measure its memory
        # takes ten times as long as the input.
        begun = time.thread_time()
        outcome, problem = tried(target, data)
        report.inputs += 1
        report.taken += not outcome.startswith("-")
        is_fast = time.thread_time() - begun < NOT_FAST_SECONDS
        if target.declared and not problem and not (is_fast and report.inputs % SAMPLED):
            report.measured += 1
            problem = greedy(target, data)
        if problem:
            report.findings.append(Finding(data, problem))
            if len(report.findings) > 20:
                break
        elif outcome not in report.outcomes and len(report.outcomes) < 5000:
            report.outcomes.add(outcome)
            if len(pool) < MOST_KEPT:
                pool.append(data)
        if not report.inputs % 4096 and memory() - before > MEMORY:
            report.findings.append(Finding(data, f"the process has grown by {(memory() - before) >> 20} MiB"))
            break
    return report


def tried(target: Target, data: bytes) -> tuple[str, str]:
    """Return the outcome of an input, and the problem with it or an empty text."""
    begun, problem = time.perf_counter(), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # A warning is a finding too.
            outcome = target.run(data)
    except target.documented as error:
        outcome = "-" + DIGITS.sub("#", str(error)[:40])[:24]
    except Exception as error:  # noqa: BLE001 - any undocumented error is a finding
        outcome, problem = type(error).__name__, f"{type(error).__name__}: {str(error)[:200]}"
    if time.perf_counter() - begun > SLOW_SECONDS and all(slow(target.run, data) for _ in range(3)):
        problem = f"it takes more than {SLOW_SECONDS} s"
    return outcome, problem


def slow(run: Callable[[bytes], str], data: bytes) -> bool:
    """Return whether an input is slow, by the time of this thread alone.

    The time that other programs take does not count.
    """
    begun = time.thread_time()
    with contextlib.suppress(Exception):  # An error was reported before.
        run(data)
    return time.thread_time() - begun > SLOW_SECONDS


def greedy(target: Target, data: bytes) -> str:
    """Return a problem if a reader takes too much memory for an input."""
    assert target.declared is not None
    tracemalloc.start()
    with contextlib.suppress(target.documented):
        target.run(data)
    peak, most = tracemalloc.get_traced_memory()[1], TIMES * (len(data) + target.declared(data)) + ROOM
    tracemalloc.stop()
    return f"it takes {peak} bytes of memory, but the limit is {most}" if peak > most else ""


def stream(pool: list[bytes], dice: random.Random, inputs: int) -> Iterator[bytes]:
    first = pool[:inputs]  # A copy, because the pool grows meanwhile.
    yield from first
    for _ in range(inputs - len(first)):
        yield mutated(pool, dice.random)


def mutated(pool: list[bytes], rnd: Callable[[], float]) -> bytes:
    data = bytearray(pool[int(rnd() * len(pool))])
    for _ in range(1 + int(rnd() * rnd() * 6)):
        at, what = int(rnd() * (len(data) + 1)), rnd()
        if what < 0.25 and at < len(data):
            data[at] ^= 1 << int(rnd() * 8)
        elif what < 0.4 and at < len(data):
            data[at] = int(rnd() * 256)
        elif what < 0.6:
            odd = ODD[int(rnd() * len(ODD))]
            data[at : at + (len(odd) if rnd() < 0.5 else int(rnd() * 4))] = odd
        elif what < 0.75:
            del data[at : at + 1 + int(rnd() * rnd() * 16)]
        elif what < 0.85:
            stop = at + int(rnd() * 24)
            data[at:at] = data[at:stop]
        else:
            other = pool[int(rnd() * len(pool))]
            start = int(rnd() * len(other))
            data[at : at + int(rnd() * 16)] = other[start : start + int(rnd() * 40)]
    return bytes(data[:LONGEST])


def memory() -> int:
    """Return the bytes in use now, not the peak, which another test may have caused."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
