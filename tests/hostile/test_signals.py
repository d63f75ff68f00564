"""A signal to a coordinator at any time leads to a documented exit code and no core dump.

The instants are random: `INSTANTS=300 python -m pytest tests/hostile/test_signals.py` tries more of them.
"""

import os
import random
import signal
import time

import pytest

from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import Federation

INSTANTS = int(os.environ.get("INSTANTS", "12"))
QUICK = Policy(quorum=1, patience_seconds=20.0, settle_seconds=0.1, grace_seconds=0.3)
PLAIN = {"name": "fedavg", "lr": 0.02}
TRAINS = {"name": "fedlsa", "server_epochs": 100_000}  # The coordinator trains for longer than a test takes.
LIVED_TO = ("", "joined", "asked", "closed", '"event": "round"', "finished", "report: ")
CRASHES = ("terminate called", "Fatal Python error", "Traceback", "Exception ignored", "dumped core")
BEFORE_ANYTHING = -signal.SIGTERM  # The coordinator was still starting, and had logged nothing.


def wait_for_word(process, word, seconds=10.0):
    """Wait for a word in the log of a process, or for its end, or until the seconds are over.

    The word may never come, because a run that an earlier process began may already be over.
    """
    until = time.monotonic() + seconds
    while word not in process.log.read_text() and process.runs() and time.monotonic() < until:
        time.sleep(0.005)


def strike(process, chance):
    """Send one signal, or two so close that the second meets the handler of the first."""
    process.say(signal.SIGTERM)
    if chance.random() < 0.3:
        time.sleep(chance.choice([0.0, 0.001, 0.02]))  # Into the handler of the first, or after it.
        process.say(chance.choice([signal.SIGTERM, signal.SIGINT]))


def struck(f, chance, number):
    """Start a coordinator and signal it at a random time; return its exit code and its log.

    It continues the run of the coordinator before it, or in some draws begins a run in which it trains.
    """
    trains, broker = chance.random() < 0.3, chance.choice(["there", "there", "there", "goes", "gone"])
    if broker == "gone":
        f.broker.stop()
    made = f.coordinator(name=f"trains-{number}" if trains else "run", method=TRAINS if trains else PLAIN)
    word = "" if broker == "gone" else chance.choice(LIVED_TO[:2] if trains else LIVED_TO)
    wait_for_word(made, word)
    time.sleep(chance.choice([0.0, chance.uniform(0.0, 0.05), chance.uniform(0.0, 0.8)]))  # A random instant.
    if broker == "goes":
        f.broker.stop()
    strike(made, chance)
    code = f.wait_for_end(made)
    if broker != "there":
        f.broker.start()
    return code, f.log_of(made)


def test_a_signal_ends_a_coordinator_at_any_time_with_an_exit_code_and_no_crash(tmp_path):
    chance = random.Random(INSTANTS)
    with Federation(tmp_path, "one", "two", policy=QUICK, rounds=60) as f:
        f.raw("one", again=0.3), f.raw("two", again=0.3)
        for number in range(INSTANTS):
            code, said = struck(f, chance, number)
            assert not [word for word in CRASHES if word in said], said
            in_order, early = (
                (128 + signal.SIGINT, 128 + signal.SIGTERM),
                code == BEFORE_ANYTHING and not said,
            )
            assert code in (0, 1, *in_order) or early, (code, said)
            if code in in_order:
                assert (
                    said.splitlines()[-1]
                    == f"protofleet: ended in good order by {signal.Signals(code - 128).name}"
                )
            elif code == 1:  # An interrupt came before anything ran that could be stopped.
                assert said.splitlines()[-1] == "protofleet: stopped", said


@pytest.mark.parametrize("party", ["coordinator", "device"])
def test_a_party_that_waits_for_its_broker_ends_in_order_after_a_signal(tmp_path, party):
    with Federation(tmp_path, "one", policy=QUICK) as f:
        f.broker.stop()
        made = f.coordinator() if party == "coordinator" else f.device("one")
        wait_for_word(made, "nothing listens there", 30.0)
        made.say(signal.SIGTERM)
        assert f.wait_for_end(made) == 128 + signal.SIGTERM, f.log_of(made)
        assert f.log_of(made).splitlines()[-1] == "protofleet: ended in good order by SIGTERM"


def test_an_idle_device_that_waits_for_its_broker_is_drained_at_once(tmp_path):
    with Federation(tmp_path, "one", policy=QUICK) as f:
        f.broker.stop()
        made = f.device("one")
        wait_for_word(made, "nothing listens there", 30.0)
        made.say(signal.SIGUSR1)
        assert f.wait_for_end(made) == 0, f.log_of(made)


def test_only_an_unclean_end_of_a_coordinator_is_reported_by_the_next_coordinator(tmp_path):
    """The alert rule `CoordinatorRestarting` reads this gauge.

    A backup or another method stops a coordinator in order.
    """
    with Federation(tmp_path, "one", policy=QUICK) as f:
        told = []
        for run, ends in (("a", "SIGTERM"), ("b", "SIGINT"), ("b", "SIGKILL"), ("c", "SIGTERM")):
            made = f.coordinator(name=run)
            f.wait_until(f.answers, "a coordinator to answer")
            told.append(f.metrics()["protofleet_unclean_start_timestamp_seconds"])
            made.say(signal.Signals[ends])
            f.wait_for_end(made)
        f.coordinator(name="c")
        f.wait_until(f.answers, "a coordinator to answer")
        assert told[:3] == [0.0, 0.0, 0.0]
        assert f.metrics()["protofleet_unclean_start_timestamp_seconds"] == told[3] > time.time() - 60
