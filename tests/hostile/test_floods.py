"""Devices that flood behind a real Mosquitto: the coordinator ignores them, and the run of the others continues."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from datetime import datetime

from protofleet.cli.main import main
from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import Federation

TOGETHER = Policy(quorum=2, gather=2, grace_seconds=1.0)
JUNK = bytes(200)


@contextlib.contextmanager
def flooding(f: Federation, name: str, *topics: str, frames=(JUNK,), rate: float = 1e9):
    """Flood topics as fast as a socket takes the frames, while the `with` lasts."""
    who = f.credentials(name)
    told = {
        "client": name, "ca": who.ca, "cert": who.cert, "key": who.key, "host": who.host, "port": who.port,
        "topics": [f"protofleet/1/{f.name}/{topic}" for topic in topics or (f"up/{name}",)],
        "frames": [frame.hex() for frame in frames], "rate": rate, "seconds": 600.0,
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.hostile.flooder", json.dumps(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flooder:
        try:
            assert flooder.stdout and flooder.stdout.readline(), "the flooder must send frames"
            yield
            assert flooder.poll() is None, "the flooder must run to the end"
        finally:
            flooder.kill()


def test_two_devices_that_flood_do_not_stop_the_run(tmp_path):
    """Without floods these rounds take a few seconds; before names were banned, no round ended in 200 s."""
    with Federation(tmp_path, "a", "b", "shouter", "crier", rounds=7, policy=TOGETHER) as f:
        coordinator = f.coordinator()
        f.wait_until(f.answers, "the coordinator")
        with flooding(f, "shouter"), flooding(f, "crier", "up/crier", "dev/crier/state"):
            f.wait_until(lambda: f.metrics().get("protofleet_banned_devices") == 2, "both to be banned")
            begun = time.monotonic()
            one, two = f.raw("a"), f.raw("b")
            assert f.wait_for_end(coordinator) == 0, f.last_words()
            assert time.monotonic() - begun < 60
        assert {v for device in (one, two) for v, _ in device.verdicts()} == {"accepted"}
        assert [line["round"] for line in f.rounds()] == list(range(1, 9))
        log = [line for line in f.log_of(coordinator).splitlines() if '"event"' not in line]
        assert len([line for line in log if "floods" in line]) == 2
        assert len("".join(log)) < 20_000


def test_a_ban_survives_a_restart_and_ends_with_the_command_unban(tmp_path, capsys):
    policy = Policy(
        quorum=3, gather=3, straggler_factor=0.0
    )  # The last round has no quorum; without a straggler factor it waits for all devices too.
    with Federation(tmp_path, "a", "b", "shouter", rounds=2, policy=policy) as f:
        first = f.coordinator()
        f.wait_until(f.answers, "the coordinator")
        with flooding(f, "shouter", rate=5000):
            # The log line comes after the count.
            f.wait_until(lambda: "shouter floods the coordinator: " in f.log_of(first), "it to be banned")
        first.kill()
        second = f.coordinator()
        f.raw("a"), f.raw("b")
        reformed = f.raw("shouter")
        f.wait_until(lambda: f.answers() and f.metrics()["protofleet_devices_present"] == 2, "the others")
        assert f.metrics()["protofleet_banned_devices"] == 1
        assert main(["unban", "--folder", str(f.run)]) == 0
        said = re.fullmatch(
            r"shouter: until (.*) UTC, as it flooded at (.*) UTC \(ban 1 of it; the next one .* lasts 2 h\)\n",
            capsys.readouterr().out,
        )
        end, begin = (datetime.strptime(when, "%Y-%m-%d %H:%M:%S") for when in said.groups())
        assert (end - begin).total_seconds() == 3600 and f"until {said[1]} UTC" in f.log_of(first)
        assert main(["unban", "nobody", "--folder", str(f.run)]) == 2
        assert "nobody is not banned" in capsys.readouterr().err
        assert main(["unban", "shouter", "--folder", str(f.run)]) == 0
        assert f.wait_for_end(second) == 0, f.last_words()
        assert reformed.finished.wait(20)
        assert "messages of shouter are no longer ignored" in f.log_of(second)
        assert [line["participants"] for line in f.rounds()] == [["a", "b", "shouter"]] * 3


def test_a_want_that_repeats_an_object_thousands_of_times_is_refused(tmp_path):
    with Federation(tmp_path, "bad", rounds=1) as f:
        coordinator = f.coordinator()
        bad = f.raw("bad", lambda task: None)
        broadcast = bad.wait("task").fields["broadcast"][0]
        for count in (64, 65, 4000):
            bad.say("want", {"object": broadcast, "ranges": [], "more": [[broadcast, []]] * count})
        refused = 'protofleet_messages_total{direction="up",kind="want",result="malformed"}'
        f.wait_until(lambda: f.metrics().get(refused) == 2, "two of three to be refused")
        assert "the limit is 64" in f.log_of(coordinator)
