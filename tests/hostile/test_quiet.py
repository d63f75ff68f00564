"""A device sends hellos rarely only if its coordinator knows it.

The coordinator names each device that it misses.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import Federation
from tests.hostile.test_other_runs import held_in

OFTEN = "import protofleet.coordinator.here_timer as h; h.ASK_SECONDS = h.HERE_SECONDS = 1.0"
HELLOS = "import protofleet.edge_client.conversation.hello_timer as q; q.HELLO_SECONDS = 0.5"
SLOWLY = f"""
{HELLOS}
import time
from protofleet.edge_client.job_runner import JobRunner
answer = JobRunner.answer
def slowly(*x):
    time.sleep(0.3)
    return answer(*x)
JobRunner.answer = slowly
"""
RULES = Policy(quorum=1, gather=1, grace_seconds=1.0, settle_seconds=0.2)


def takes_part(f: Federation, name: str) -> bool:
    return any(name in line["participants"] for line in f.rounds()[-3:])


def heard_here(f: Federation, name: str, since: int) -> int:
    seen = list(f.proxy.seen)[since:]
    return sum(x.party == name and x.down and x.topic.endswith("coord/state") for x in seen)


def wait_for_five_heres(f: Federation, name: str) -> None:
    """Wait until this device has got five messages `here` of the coordinator."""
    since = len(f.proxy.seen)
    f.wait_until(lambda: heard_here(f, name, since) >= 5, "messages `here` of the coordinator")


def test_a_device_whose_later_hellos_are_lost_takes_part_as_soon_as_one_arrives(tmp_path):
    with Federation(tmp_path, "one", "two", taken_over=True, rounds=100_000, policy=RULES) as f:
        f.coordinator(planted=OFTEN)
        f.device("one", planted=SLOWLY)
        f.wait_until(lambda: len(f.rounds()) >= 2, "rounds")
        lost = []

        def passes(x):
            if x.party == "two" and x.kind == "hello" and not x.down:
                lost.append(x)
                return len(lost) == 1
            return True

        f.proxy.passes = passes
        f.device("two", planted=SLOWLY)
        f.wait_until(lambda: len(lost) >= 4, "hellos that are lost")
        wait_for_five_heres(f, "two")
        f.proxy.passes = lambda x: True
        f.wait_until(lambda: takes_part(f, "two"), "two to take part", 30)


def test_an_unbanned_device_takes_part_after_the_next_message_that_names_missing_devices(tmp_path):
    with Federation(tmp_path, "one", "two", taken_over=True, rounds=100_000, policy=RULES) as f:
        f.coordinator(planted=OFTEN)
        f.device("one", planted=SLOWLY), f.device("two", planted=SLOWLY)
        f.wait_until(lambda: takes_part(f, "two"), "two to take part")
        for _ in range(3000):
            f.proxy.tell("coordinator", f"protofleet/1/{f.name}/up/two", b"x")
        f.wait_until(lambda: f.metrics().get("protofleet_banned_devices"), "two to be banned")
        f.wait_until(lambda: not takes_part(f, "two"), "rounds without two")
        wait_for_five_heres(f, "two")
        f.proxy.passes = lambda x: x.kind != "welcome"  # The immediate welcome is lost.
        said = [sys.executable, "-m", "protofleet", "unban", "two", "--folder", str(f.run)]
        subprocess.run(said, check=True, capture_output=True)
        f.wait_until(lambda: takes_part(f, "two"), "two to take part again", 30)


def test_a_bye_of_an_earlier_run_that_a_broker_repeats_removes_no_device_from_this_run(tmp_path):
    with Federation(tmp_path, "one", "two", taken_over=True, policy=RULES) as f:
        both = replace(RULES, quorum=2, gather=2)  # Otherwise the run ends before the second device begins.
        first = f.coordinator(name="spring", rounds=1, policy=both)
        for name in ("one", "two"):
            f.device(name, planted=SLOWLY, stays=True)
        assert f.wait_for_end(first) == 0, f.last_words()
        kept = f.proxy.frames("bye", "two", down=False)
        assert kept and {frame.header["run"] for frame in kept} == {"spring"}
        f.settings["name"] = "summer"
        second = f.coordinator(name="summer", rounds=100_000)
        f.wait_until(lambda: takes_part(f, "two"), "two to take part in the next run")
        heard = 'protofleet_messages_total{direction="up",kind="bye",result="accepted"}'
        for frame in kept:
            f.proxy.tell("coordinator", frame.topic, frame.data)
        f.wait_until(lambda: f.metrics().get(heard, 0) == len(kept), "the old byes to be counted")
        since = len(f.rounds())
        f.wait_until(lambda: len(f.rounds()) >= since + 5, "more rounds")
        assert all("two" in line["participants"] for line in f.rounds()[since + 1 :])
        assert '"event": "left"' not in f.log_of(second)


def test_a_device_at_work_that_missed_the_birth_of_the_next_coordinator_requests_its_plan(tmp_path):
    """The coordinator knows the device from its disk, so it sends it a task.

    The device answers under a plan that it gets from the coordinator.
    """
    with Federation(tmp_path, "one", taken_over=True, rounds=5, policy=RULES) as f:
        first = f.coordinator(planted=OFTEN)
        (device,), held = held_in(f, 2, "one")
        f.wait_until(held, "round 2")
        first.kill()
        births = []

        def passes(x):
            if x.down and x.party == "one" and x.kind == "state":
                births.append(x)
                return len(births) > 1
            return True

        f.proxy.passes = passes
        since = len(f.proxy.seen)
        second = f.coordinator(planted=OFTEN)
        f.wait_until(lambda: births and heard_here(f, "one", since) >= 3, "the later coordinator to be heard")
        (f.folder / "go").touch()
        f.wait_until(lambda: len(f.rounds()) >= 3, "more rounds", 30)
        assert f.wait_for_end(second) == 0 and f.wait_for_end(device) == 0, f.last_words()
