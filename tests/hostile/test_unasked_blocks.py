"""Broadcasts of one block are sent once without a request; each malformed block on their topic is counted."""

import urllib.request

from protofleet.coordinator.round.policy import Policy
from protofleet.federation.brokers.ports import free_port
from tests.hostile.federation import Federation

RULES = Policy(quorum=2, gather=2, settle_seconds=0.2, patience_seconds=300)
HELLOS = 30


def test_a_device_that_repeats_its_hello_gets_the_block_once(tmp_path):
    with Federation(tmp_path, "bad", "one", taken_over=True, rounds=1, policy=RULES) as f:
        f.coordinator()
        bad = f.raw("bad", lambda task: None, hello={"can": ["inline"]}, again=1000.0)
        f.raw("one", lambda task: None, again=1000.0)
        bad.wait("task")
        since = len(bad.heard)
        for _ in range(HELLOS):
            bad.greet()
        bad.wait_until(lambda: sum(h.kind == "task" for h in bad.heard[since:]) >= HELLOS, "as many tasks")
        blocks = [x for x in f.proxy.seen if x.party == "bad" and x.down and x.kind == "block"]
        assert len(blocks) <= 1, len(blocks)


def unreadable(port):
    """Return the number of frames of the kind block that a device has counted as malformed."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    lines = [line for line in text.splitlines() if "messages_total" in line and "malformed" in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_short_blocks_on_the_common_topic_are_counted(tmp_path):
    with Federation(tmp_path, "one", "two", taken_over=True, rounds=1, policy=RULES) as f:
        f.coordinator()
        port = free_port()
        f.device("one", metrics_port=port)
        f.wait_until(lambda: f.proxy.frames("welcome", down=True), "its welcome")
        for _ in range(100):
            f.proxy.tell("one", f"protofleet/1/{f.name}/bcast/now", b"PF\x02" + bytes(5))
        f.wait_until(lambda: unreadable(port) >= 100, "short blocks that are counted", 20)
