"""A few seconds of the work that `make fuzz` does for minutes, with the same inputs each time.

Planted faults show that the fuzzer can find something.
"""

import contextlib
import mmap
import time
import tracemalloc
from dataclasses import replace

import pytest

from protofleet.protocol.coding.forms import Form
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.fuzz.coded import RECORDS, bundle_repaired, recipes
from tests.fuzz.engine import CORPUS, NOT_FAST_SECONDS, fuzz, kept, tried
from tests.fuzz.targets import TARGETS, Target

INPUTS = 30_000


@pytest.mark.parametrize("name", TARGETS)
def test_each_input_is_accepted_or_refused_with_a_documented_error(name):
    report = fuzz(name, TARGETS[name], max(200, int(INPUTS * TARGETS[name].share)), seed=1)
    assert [(finding.words, finding.data) for finding in report.findings] == []
    assert len(report.outcomes) >= 2, "it is refused in more than one way"


@pytest.mark.parametrize("name", TARGETS)
def test_kept_findings_and_seeds_take_less_than_4_MiB_of_memory(name):
    target = TARGETS[name]
    for data in [*kept(name), *target.seeds()]:
        tracemalloc.start()
        with contextlib.suppress(target.documented):
            target.run(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 << 20


def test_each_target_accepts_one_of_its_seeds():
    for name, target in TARGETS.items():
        taken = 0
        for data in target.seeds():
            try:
                taken += bool(target.run(data))
            except target.documented:
                continue
        assert taken, name


@pytest.mark.parametrize("name", [*RECORDS, "bundle_repaired", "bundle_packed", "delta_repaired"])
def test_a_tenth_of_the_inputs_of_a_coded_array_are_decoded_completely(name):
    """Inputs of a wrong size would test only the first check."""
    report = fuzz(name, TARGETS[name], 600, seed=2)
    assert report.taken > 60, f"{report.taken} of {report.inputs}"


def test_repaired_bundles_reach_each_form():
    reached = set()
    for data in recipes():
        with contextlib.suppress(Rejected):
            reached |= set(bundle_repaired(data).partition(" arrays, ")[2].split(", "))
    assert reached == {form.name for form in Form}


def test_the_corpus_is_small_and_has_only_folders_of_existing_targets():
    folders = [path for path in CORPUS.glob("*") if path.is_dir()]  # Without findings there is none.
    assert {path.name for path in folders} <= set(TARGETS)
    assert sum(file.stat().st_size for path in folders for file in path.iterdir()) < 200_000


def planted(fault):
    """Return a reader of two-byte headers and four-byte bodies with one fault behind both checks."""

    def run(data):
        if len(data) < 6 or data[:2] != b"OK":
            raise Rejected(Reason.MALFORMED, "no header")
        if data[2] > 200:
            fault(data)
        return str(data[2] // 64)

    return Target(run, Rejected, lambda: [b"OK\x00\x00\x00\x00"], 1.0)


def dies(data):
    raise IndexError("nobody documented this")


def dawdles(data):
    for _ in range(50_000_000):
        pass


def computes(data):
    begun = time.thread_time()
    while time.thread_time() - begun < 2 * NOT_FAST_SECONDS:
        pass


GREED = []


def grows(data):
    """Take memory from the system; the allocator may have room that other tests have freed."""
    GREED.append(mmap.mmap(-1, 64 << 10))
    GREED[-1].write(b"x" * (64 << 10))


@pytest.mark.parametrize(("fault", "words"), [(dies, "IndexError"), (grows, "grown by")])
def test_the_fuzzer_finds_a_planted_fault(fault, words):
    report = fuzz("planted", planted(fault), 40_000, seed=3)
    GREED.clear()
    assert any(words in finding.words for finding in report.findings)


def test_the_fuzzer_finds_an_input_that_takes_over_four_times_its_declared_memory():
    modest, greedy = (
        replace(planted(lambda data, size=size: bytearray(size)), declared=lambda data: 1 << 20)
        for size in (3 << 20, 5 << 20)
    )
    assert fuzz("planted", modest, 3000, seed=3).findings == []
    words = [finding.words for finding in fuzz("planted", greedy, 3000, seed=3).findings]
    assert words and all("bytes of memory" in one for one in words)


def test_memory_is_measured_for_inputs_that_compute_and_not_for_inputs_that_wait():
    """An input waits too if other programs use the processor."""

    def waits(data):
        time.sleep(0.01)  # The input of a program that waits.

    for fault, measured in ((waits, False), (computes, True)):
        slow = replace(planted(fault), declared=lambda data: 1 << 20, seeds=lambda: [b"OK\xff\x00\x00\x00"])
        assert bool(fuzz("planted", slow, 20, seed=3).measured) is measured


def test_the_fuzzer_finds_a_slow_input_by_the_cpu_time_of_its_thread():
    assert tried(planted(dawdles), b"OK\xff\x00\x00\x00")[1].startswith("it takes more than")
    waits = planted(lambda data: time.sleep(0.1))  # A sleep uses no time of this thread.
    assert tried(waits, b"OK\xff\x00\x00\x00")[1] == ""
