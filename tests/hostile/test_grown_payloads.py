"""A message becomes larger than the packet limit of the broker during a run: it waits, and the run continues."""

from __future__ import annotations

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network
from tests.hostile.federation import Federation

TRIES = 5.0  # Seconds; several more tries happen in them.
LEAST = 5120  # 4,096 blocks of 1,024 bytes: 4 MiB
FEDPLCC = {"name": "fedplcc", "lr": 0.02}
LARGE = Network("mlp", feature_size=615, embedding_size=1500)  # 4.19 MB of weights; 6 kB a prototype.
RULES = Policy(quorum=2, gather=2, settle_seconds=0.2, patience_seconds=120.0)
ACCEPTED = 'protofleet_updates_total{verdict="accepted"}'
HELLOS = 'protofleet_messages_total{direction="up",kind="hello",result="accepted"}'
# The server half of round 1 is slow: it ends when a file exists.
SLOW = """
import pathlib, time
from protofleet.coordinator.server.runner import ServerRunner
step = ServerRunner.step
def slow(self, advance, *more):
    found = step(self, advance, *more)
    while advance.phase == "train" and not pathlib.Path({!r}).exists():
        time.sleep(0.05)
    return found
ServerRunner.step = slow
"""


def restart(f, *lines):
    """Restart the Mosquitto with other settings, on the same port."""
    f.broker.stop()
    f.broker.extra_lines = lines
    f.broker.start()


def test_a_broadcast_above_the_packet_limit_of_a_restarted_broker_waits_for_a_larger_limit(tmp_path):
    settings = {"network": LARGE, "method": FEDPLCC, "policy": RULES, "rounds": 2}
    with Federation(tmp_path, "one", "two", **settings) as f:
        coordinator = f.coordinator(planted=SLOW.format(str(tmp_path / "go")))
        devices = [f.device(name) for name in ("one", "two")]
        f.wait_until(lambda: f.answers() and f.metrics().get(ACCEPTED) == 2, "both answers")
        before = f.metrics()[HELLOS]
        restart(f, f"max_packet_size {LEAST}")
        f.wait_until(lambda: f.metrics().get(HELLOS, 0) >= before + 2, "all devices to be back")
        (tmp_path / "go").touch()
        said = f"so each block has 2048 bytes, but the broker accepts packets of {LEAST}; raise its limit to 6144"
        f.wait_until(lambda: said in f.log_of(coordinator), "an attempt")
        f.stays(lambda: coordinator.child.poll() is None, "it tries again", TRIES)
        assert "the broker accepted larger packets before" in f.log_of(coordinator)
        restart(f)
        assert f.wait_for_end(coordinator) == 0, coordinator.last_word()
        assert [f.wait_for_end(device) for device in devices] == [0, 0]
        assert "no answer from" not in f.log_of(coordinator)


def test_an_answer_above_the_only_packet_limit_that_its_device_knows_waits_for_a_larger_limit(tmp_path):
    settings = {"network": LARGE, "method": FEDPLCC, "rounds": 1, "broker": [f"max_packet_size {LEAST}"]}
    rules = Policy(quorum=1, gather=1, settle_seconds=0.2, patience_seconds=120.0)
    with Federation(tmp_path, "one", policy=rules, **settings) as f:
        coordinator, device = f.coordinator(), f.device("one")
        said = (
            "the largest object has grown; this process tries again until the broker accepts larger packets"
        )
        f.wait_until(lambda: said in f.log_of(device), "an attempt")
        f.stays(lambda: device.child.poll() is None, "it tries again", TRIES)
        assert "raise its limit to 6144" in f.log_of(device)
        restart(f)
        assert f.wait_for_end(coordinator) == 0, coordinator.last_word()
        assert f.wait_for_end(device) == 0, device.last_word()


def test_a_device_of_minor_version_0_gets_the_reason_why_it_cannot_take_part_any_more(tmp_path):
    """The manifest of round 2's broadcast is an object, at a broker that has never taken larger packets."""
    fedsa = {"name": "fedsa", "lr": 0.02, "anchors": "random"}
    settings = {"network": Network("mlp", embedding_size=4000), "method": fedsa, "rounds": 2}
    rules = Policy(quorum=1, gather=2, settle_seconds=0.2, patience_seconds=5.0)
    with Federation(
        tmp_path, "one", "old", policy=rules, broker=[f"max_packet_size {LEAST}"], **settings
    ) as f:
        coordinator, old = f.coordinator(), f.raw("old", lambda task: None)
        old.wait("welcome")
        device = f.device("one")
        old.wait("task")
        refusal = old.wait("refusal")
        assert "it does not know manifest, without which it cannot take part" in refusal.fields["reason"]
        old.stop()
        assert f.wait_for_end(coordinator) == 0, coordinator.last_word()
        assert f.wait_for_end(device) == 0, device.last_word()
