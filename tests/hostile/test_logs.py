"""Texts of unknown senders are in the logs as plain text, and are always short."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from protofleet.coordinator.round.policy import Policy
from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.protocol.security.enrolment import CURRENT, KnownRecords, load_enrolled
from protofleet.protocol.wire.names import COORDINATOR
from tests.hostile.federation import Federation
from tests.hostile.test_floods import flooding

NASTY = "x\n2026-01-01 00:00:00,000 INFO all is well\x1b[2J\x1b]0;mine\x07\u202e"
TOGETHER = Policy(quorum=2, gather=2, grace_seconds=1.0)


def memory_of(process) -> int:
    """Return the resident memory of a process in bytes."""
    lines = Path(f"/proc/{process.child.pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def words_of(f: Federation, process) -> str:
    """Return the log of a process without the events that it prints on request."""
    return "".join(
        line for line in f.log_of(process).splitlines(keepends=True) if not line.startswith('{"event"')
    )


def test_twenty_thousand_hostile_frames_write_few_log_lines_and_no_line_of_their_choice(tmp_path):
    """Before, these frames wrote 38 MB, in which a device could write any text."""
    with Federation(tmp_path, "a", "b", "liar", rounds=2, policy=TOGETHER) as f:
        coordinator = f.coordinator()
        liar = f.raw("liar", says_hello=False)
        liar.wait("state")
        for number in range(30):  # So few frames do not cause a ban.
            liar.publish(liar.frame(NASTY, {"classes": 3}, sender=f"{NASTY}{number}"))
            liar.say("bye", {"reason": NASTY})
        f.wait_until(lambda: "WARNING" in words_of(f, coordinator), "its texts to be in the log")
        before = memory_of(coordinator)
        forged = [liar.frame("hello", {}, sender=f"{NASTY}{number}", boot=number) for number in range(100)]
        liar.stop()
        with flooding(f, "liar", frames=forged, rate=5000):
            f.wait_until(lambda: f.metrics()["protofleet_banned_devices"], "it to be banned")
            time.sleep(4)  # At least 20,000 frames come in this time.
            assert memory_of(coordinator) < before + (64 << 20)
        f.raw("a"), f.raw("b")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        words = words_of(f, coordinator)
        assert len(words) < 100_000 and "all is well" in words
        assert all(line.isprintable() for line in words.splitlines())
        assert not [line for line in words.split("\n") if line.startswith("2026-01-01")]


def test_a_device_logs_little_about_the_frames_of_a_hostile_broker(tmp_path):
    with Federation(tmp_path, "real", taken_over=True, rounds=2) as f:
        real = f.device("real")
        # The device gets no frame before the broker has accepted it; after that it sends a hello.
        f.wait_until(lambda: f.proxy.frames("hello", "real", down=False), "the device to be there")
        topic = f"protofleet/1/{f.name}/down/real"
        for number in range(2000):
            f.proxy.tell("real", topic, b"PF\x01" + number.to_bytes(4, "little") * 50)
        f.wait_until(lambda: "rejected" in f.log_of(real), "it to be rejected")
        coordinator = f.coordinator()
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(real) == 0, f.last_words()
        assert f.log_of(real).count("rejected") < 100


def test_unknown_names_are_not_logged_and_not_kept(tmp_path, caplog):
    fleet = enrol_federation(tmp_path / "enrolled", "meadow", ["a"])
    trust = load_enrolled(fleet.folder_of(COORDINATOR) / CURRENT, time.time()).trust
    known = KnownRecords(fleet.root / "records", trust)
    with caplog.at_level(logging.DEBUG):
        assert [name for name in (f"invented-{number}" for number in range(1000)) if name in known] == []
    assert not caplog.records and list(known) == ["a"]


def test_a_damaged_record_is_logged_once_and_ends_no_process(tmp_path, caplog):
    fleet = enrol_federation(tmp_path / "enrolled", "meadow", ["a", "b"])
    trust = load_enrolled(fleet.folder_of(COORDINATOR) / CURRENT, time.time()).trust
    known = KnownRecords(fleet.root / "records", trust)
    (fleet.root / "records" / "b.record").write_bytes(b"\xff nonsense")
    assert [known.get("b") for _ in range(5)] == [None] * 5
    assert list(known) == ["a"] and len(caplog.records) == 1
