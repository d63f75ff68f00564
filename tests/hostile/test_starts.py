"""A coordinator that restarts while devices repeat their hellos."""

import re
import signal
import time

import pytest

from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import Federation

DEVICES = [f"d{i}" for i in range(8)]
NAMES = ("cat", "cow", "hen")  # The names are known, as after the first start of most runs.
AGAIN = re.compile(r"connected to the broker again, after \d+ s")
QUICK_ALONE = Policy(quorum=1, grace_seconds=1.0, settle_seconds=0.0)
QUICK = Policy(quorum=3, grace_seconds=1.0, settle_seconds=0.0)
# To read the lines of some thousand rounds takes this long, and the connection is open meanwhile.
LONG_RUN = """
import time
import protofleet.coordinator.main as main
observed = main.observed
def after_reading(*given):
    time.sleep(2.0)
    return observed(*given)
main.observed = after_reading
"""


def started_again(f, pause):
    """Stop the coordinator in the middle of its run, start another, and return the log of that one."""
    f.wait_until(lambda: len(f.rounds()) > 1, "some rounds")
    before = f.processes[-1]
    before.say(signal.SIGTERM)
    f.wait_for_end(before)
    done = len(f.rounds())
    time.sleep(pause)  # The devices notice that the coordinator is gone, and send hellos.
    after = f.coordinator(planted=LONG_RUN)
    f.wait_until(lambda: len(f.rounds()) > done + 1 or not after.runs(), "the next rounds")
    assert after.runs(), f.log_of(after)
    said = f.log_of(after)
    assert f"resuming in round {done + 1}," in said, said
    assert "Traceback" not in said
    return said


@pytest.mark.slow
def test_a_restarted_coordinator_continues_its_run_with_any_number_of_waiting_hellos(tmp_path):
    with Federation(tmp_path, *DEVICES, rounds=100_000, policy=QUICK, class_names=NAMES) as f:
        f.coordinator()
        for name in DEVICES:
            f.raw(name, again=0.3)
        for pause in (3.0, 8.0):
            started_again(f, pause)


@pytest.mark.slow
def test_both_parties_log_each_return_of_the_broker_and_how_long_it_was_gone(tmp_path):
    with Federation(tmp_path, "one", rounds=100_000, policy=QUICK_ALONE) as f:
        parties = [f.coordinator(), f.device("one", stays=True)]
        f.wait_until(lambda: f.rounds(), "a round")
        f.broker.stop()
        for party in parties:
            f.wait_until(lambda party=party: "connection to the broker lost" in f.log_of(party), "the loss")
        f.broker.start()
        for party in parties:
            f.wait_until(lambda party=party: AGAIN.search(f.log_of(party)), "word that it is back")
        done = len(f.rounds())
        f.wait_until(lambda: len(f.rounds()) > done, "the next round")
        for party in parties:
            said = f.log_of(party)
            assert len(AGAIN.findall(said)) == said.count("connection to the broker lost"), said
