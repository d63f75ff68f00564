"""Devices whose classes have other names, in real processes: both sides refuse these devices only."""

from __future__ import annotations

import shutil
from dataclasses import replace

from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.wire.class_names import digest_of
from tests.chaos.campaign import pictures
from tests.hostile.device import Device
from tests.hostile.federation import Federation

NAMES, OTHER = ("circle", "line", "square"), ("line", "square", "zebra")
POLICY = Policy(quorum=2, gather=2, settle_seconds=0.5, grace_seconds=1.0, patience_seconds=60.0)
FIRST = "class 0 is 'line' in {} and 'circle' in {}; {}: line, square, zebra; {}: circle, line, square"
JUDGES_NOTHING = (
    "from protofleet.coordinator.devices.class_names import ClassNameVote\n"
    "ClassNameVote.judge = lambda self, hello, now: None"
)
HOSTILE = {
    "cursor": ("circle", "line", "\x1b[2J\x1b[Hall is well"),
    "lines": ("circle", "line", "square\n2026-01-01 INFO all is well"),
    "long": ("circle", "line", "s" * 65),
    "many": tuple(f"class-{i}" for i in range(4097)),
}


def zebras(f: Federation, name: str) -> None:
    """Write pictures whose folders sort differently: class 1 of the other devices is class 0 here."""
    folder = f.folder / "pictures" / name
    pictures(folder, seed=9)
    shutil.move(folder / "circle", folder / "zebra")


def by_hash(f: Federation, name: str) -> Device:
    return f.raw(name, hello={"can": ["names"], "names_hash": digest_of(OTHER)})


def test_both_sides_refuse_other_names_and_the_run_continues_with_a_device_of_minor_version_0(tmp_path):
    """The settings give the names.

    One of three real devices has other names. One raw device has minor version 0, and the others are liars.
    """
    names = ["a", "b", "odd", "old", "hash", *HOSTILE]
    with Federation(tmp_path, *names, policy=replace(POLICY, gather=3), class_names=NAMES, rounds=2) as f:
        zebras(f, "odd")
        coordinator = f.coordinator()
        odd, old = f.device("odd"), f.raw("old")
        liars = [f.raw(name, hello={"can": ["names"], "names": said}) for name, said in HOSTILE.items()]
        assert f.wait_for_end(odd) == 1
        malformed = 'protofleet_rejected_total{reason="malformed"}'
        f.wait_until(lambda: f.metrics()[malformed] >= len(liars), "every liar to be counted")
        refused = by_hash(f, "hash").wait("refusal").fields["reason"]
        assert digest_of(OTHER).hex()[:16] in refused and refused.endswith("this run: circle, line, square")
        real = [f.device("a"), f.device("b")]
        assert f.wait_for_end(coordinator) == 0 and [f.wait_for_end(device) for device in real] == [0, 0]
        log, last = f.log_of(coordinator), f.log_of(odd).splitlines()[-1]
        words = FIRST.format("its data", "this run", "its data", "this run")
        assert (
            last == f"protofleet: the coordinator refuses this device: its classes have other names: {words}"
        )
        assert f"odd cannot take part: its classes have other names: {words}" in log
        assert log.count("old sends no class names, so nothing shows") == 1
        told = [h.fields["about"] for h in old.heard if h.kind == "welcome"]
        assert told and not any("names" in about for about in told), "the device does not support the form"
        assert any("old" in line["participants"] for line in f.rounds())
        assert not any("odd" in line["participants"] or "hash" in line["participants"] for line in f.rounds())
        assert {h.kind for device in liars for h in device.heard} <= {"state"}, "they get no message"
        assert "Traceback" not in log and "\x1b" not in log
        assert not any(line.startswith("2026-01-01 INFO all is well") for line in log.splitlines())


def test_the_names_of_a_majority_are_fixed_and_the_next_coordinator_knows_them(tmp_path):
    """The settings give no names, and the liar comes first."""
    with Federation(tmp_path, "a", "b", "liar", "late", policy=POLICY, rounds=400) as f:
        first = f.coordinator()
        liar = f.raw("liar", hello={"can": ["names"], "names": OTHER})
        liar.wait("welcome")
        real = [f.device("a"), f.device("b")]
        liar.wait("refusal")
        f.wait_until(lambda: f.rounds(), "a round to end")
        said = "the class names of this run are circle, line, square, because 2 of 3 devices sent them"
        assert f.log_of(first).count(said) == 1
        for process in (*real, first):
            process.kill()
        second = f.coordinator()
        late = f.raw("late", hello={"can": ["names"], "names": OTHER})
        reason = late.wait("refusal").fields["reason"]
        assert reason.endswith(FIRST.format("its data", "this run", "its data", "this run"))
        done = len(f.rounds())
        f.device("a"), f.device("b")
        f.wait_until(lambda: len(f.rounds()) > done, "a round of the second coordinator")
        assert "liar" not in {device for line in f.rounds()[1:] for device in line["participants"]}
        assert "Traceback" not in f.log_of(first) + f.log_of(second)


def test_a_device_leaves_a_run_whose_plan_has_other_class_names(tmp_path):
    """The coordinator of this run does not compare the names."""
    with Federation(tmp_path, "odd", policy=POLICY, class_names=NAMES) as f:
        zebras(f, "odd")
        coordinator, odd = f.coordinator(planted=JUDGES_NOTHING), f.device("odd")
        assert f.wait_for_end(odd) == 1
        here = "this device's data"
        words = (
            f"the classes of this device have other names: {FIRST.format(here, 'the run', here, 'the run')}"
        )
        assert f.log_of(odd).splitlines()[-1] == (
            f"protofleet: this device cannot follow the run's plan: {words}"
        )
        farewell = 'protofleet_device_farewells_total{reason="cannot_follow"}'
        f.wait_until(lambda: f.metrics()[farewell] == 1, "the farewell to be counted")
        assert f"odd leaves: cannot_follow: {words}"[:200] in f.log_of(coordinator)
