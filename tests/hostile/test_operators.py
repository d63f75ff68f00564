"""Operators pause, resume, extend and stop a run; neither a crash, a repeated command nor a bad client changes it."""

import contextlib
import json
import os
import secrets
import socket

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.round.policy import Policy
from protofleet.lab.report.finished_run import read_run
from protofleet.runtime.control_socket import CONNECTIONS, CONTROL_SOCKET, MOST_BYTES, send
from tests.hostile.device import honest
from tests.hostile.federation import Federation

BOTH = Policy(quorum=2, gather=2, straggler_factor=0.0)


def command(f, verb, *options):
    """Run `protofleet VERB` for the federation's run, and return the exit code."""
    return main([verb, str(f.run), *options])


def state(f, capsys):
    """Return the answer of `protofleet show`; {} while no coordinator answers, for example at its start."""
    capsys.readouterr()
    done = command(f, "show", "--json") == 0
    text = capsys.readouterr().out
    return json.loads(text) if done else {}


def wait_for_state(f, capsys, wanted):
    f.wait_until(lambda: state(f, capsys).get("state") == wanted, f"the state {wanted}")


def short(stack, folder):
    """Return a short path of the socket, because the path of a Unix socket has at most 107 bytes."""
    number = os.open(folder, os.O_RDONLY)
    stack.callback(os.close, number)
    return f"/proc/self/fd/{number}/{CONTROL_SOCKET}"


def counted(f):
    """Return the digests of the updates that each round has used."""
    return {event["round"]: event["answers"] for event in f.events("counted")}


def test_a_paused_run_stays_paused_after_a_kill_and_then_continues_to_the_extended_rounds(tmp_path, capsys):
    with Federation(tmp_path, "one", "two", policy=BOTH, rounds=3) as f:
        coordinator, gate = f.coordinator(), []

        def work(task):
            return honest(task) if gate or task.round < 2 else None

        f.raw("one", work), f.raw("two", work)
        f.wait_until(lambda: any(e["round"] == 2 for e in f.events("asked")), "round 2")
        assert command(f, "pause", "--reason", "the hall has no power tonight") == 0
        assert "the run pauses at the end of round 2" in capsys.readouterr().out
        assert state(f, capsys)["state"] == "pausing"
        gate.append("open")
        wait_for_state(f, capsys, "paused")
        looked_at = str(state(f, capsys)["revision"])
        assert command(f, "extend", "--rounds", "4", "--revision", looked_at) == 0
        assert command(f, "stop", "--revision", looked_at) == 1
        assert f"has revision 2 and not {looked_at}, and is paused" in capsys.readouterr().out
        assert command(f, "extend", "--rounds", "4") == 0
        assert command(f, "extend", "--rounds", "1") == 1
        assert "round 2 has begun, so --rounds must be at least 2" in capsys.readouterr().out
        coordinator.kill()
        coordinator = f.coordinator()
        wait_for_state(f, capsys, "paused")
        found = state(f, capsys)
        assert "the hall has no power tonight" in found["reason"] and found["round"] == 3
        assert found["revision"] == 4, "the number of the newest command that was done"
        f.stays(lambda: len(f.rounds()) == 2, "two rounds", 2.0)
        assert command(f, "resume") == 0
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert [line["round"] for line in f.rounds()] == [1, 2, 3, 4, 5]
        assert json.loads((f.run / "summary.json").read_text())["rounds"] == 4


@pytest.mark.slow
def test_a_run_that_was_paused_and_killed_has_the_bits_of_an_undisturbed_run(tmp_path, capsys):
    found = []
    for disturbed in (False, True):
        with Federation(tmp_path / str(disturbed), "one", "two", policy=BOTH, rounds=3) as f:
            coordinator = f.coordinator()
            f.device("one"), f.device("two")
            if disturbed:
                f.wait_until(lambda: f.events("asked"), "round 1")
                assert command(f, "pause") == 0
                wait_for_state(f, capsys, "paused")
                coordinator.kill()
                coordinator = f.coordinator()
                wait_for_state(f, capsys, "paused")
                assert command(f, "resume") == 0
            assert f.wait_for_end(coordinator) == 0, f.last_words()
            found.append(counted(f))
    assert found[0] == found[1] and len(found[0]) == 4


def test_a_stopped_run_ends_at_once_and_does_not_continue_after_a_restart(tmp_path, capsys):
    with Federation(tmp_path, "one", "two", policy=BOTH, rounds=4) as f:
        coordinator = f.coordinator()
        f.raw("one"), f.raw("two", lambda task: honest(task) if task.round < 2 else None)
        f.wait_until(lambda: any(e["round"] == 2 for e in f.events("asked")), "round 2")
        assert command(f, "stop", "--reason", "wrong data") == 0
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        summary = json.loads((f.run / "summary.json").read_text())
        assert summary["stopped_by"] == "operator" and summary["stopped"].endswith("wrong data")
        assert summary["rounds_done"] == 1 and not read_run(f.run).faults
        again = f.coordinator()
        assert f.wait_for_end(again) == 0, f.last_words()
        assert [line["round"] for line in f.rounds()] == [1]
        capsys.readouterr()
        assert command(f, "resume") == 1
        assert "run is over (stopped" in capsys.readouterr().err


def test_a_repeated_command_has_one_effect_and_a_bad_request_has_none(tmp_path, capsys):
    with Federation(tmp_path, "one", policy=BOTH) as f:
        f.coordinator()
        folder = f.run / "coordinator"
        wait_for_state(f, capsys, "waiting")
        asked = {"id": secrets.token_hex(16), "verb": "pause", "reason": "x\n\x1b[2J" + "y" * 5000}
        first = send(folder, asked)
        assert first["verdict"] == "done" and send(folder, asked) == first
        found = state(f, capsys)
        assert [one["verb"] for one in found["commands"]] == ["pause"]
        assert "\n" not in found["reason"] and "\x1b" not in found["reason"] and len(found["reason"]) < 400
        for wrong in (
            {},
            {"verb": "pause"},
            asked | {"id": "zz"},
            asked | {"verb": 3},
            asked | {"id": "ab" * 16, "verb": "rm"},
        ):
            assert send(folder, wrong)["verdict"] == "refused"
        with contextlib.ExitStack() as stack:
            for _ in range(CONNECTIONS + 4):  # These clients are silent.
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.connect(short(stack, folder))
            f.stays(f.answers, "the coordinator to answer", 1.0)
        wait_for_state(f, capsys, "paused")  # The coordinator has closed the silent connections.
        with socket.socket(socket.AF_UNIX) as client, contextlib.ExitStack() as stack:
            client.connect(short(stack, folder))
            with contextlib.suppress(OSError):
                client.sendall(b"x" * (2 * MOST_BYTES))
            assert b"refused" in client.recv(4096)
        assert "Traceback" not in f.log_of(f.processes[0])
