"""Enrolled operators give their commands through a real broker with TLS and access rules."""

import contextlib
import json
import re
import secrets
import shutil
import signal
import sys
import threading
import time

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.round.policy import Policy
from protofleet.federation.enrol.key_folder import expect_fingerprint, install, read_approval_file
from protofleet.federation.enrol.lifecycle import revoke
from protofleet.federation.remote.client import ask_coordinator
from protofleet.federation.remote.settings import load_operator_settings
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.operators import CommandSender
from protofleet.protocol.security.keys import Identity
from protofleet.protocol.transport.base import Connected
from protofleet.protocol.wire.messages import CommandRequest
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime import credentials
from protofleet.runtime.command.errors import RunError
from tests.chaos.world import Process
from tests.conftest import Peer
from tests.hostile.device import PATIENCE
from tests.hostile.federation import Federation
from tests.hostile.test_run_queue import EXPERIMENT
from tests.support.operators import enrol_operator

BOTH = Policy(quorum=2, gather=2, straggler_factor=0.0)

# The process is killed when the effect of a submission or of a pause is on the disk, and before its result is sent.
KILLED = """
import os
import protofleet.coordinator.operators as operators
sends = operators.BrokerOperators._send
def send(self, received, *more):
    if received.request.verb in ("submit", "pause"):
        os._exit(9)
    sends(self, received, *more)
operators.BrokerOperators._send = send
"""


class Away:
    """Operators at other machines: each has the keys of an operator and the address of the broker."""

    def __init__(self, f, capsys):
        self.f, self.capsys = f, capsys
        self.files = {
            name: enrol_operator(f.fleet, f.folder / "operators", name, grants, f.address(COORDINATOR))
            for name, grants in (("alice", {"view", "run"}), ("bob", {"view"}), ("carol", {"run"}))
        }
        self.experiment = f.folder / "experiment.toml"
        self.experiment.write_text(EXPERIMENT)

    def say(self, name, *line):
        """Run a command, and return its exit code and its output."""
        self.capsys.readouterr()
        code = main([*line, "--operator", str(self.files[name])])
        return code, "".join(self.capsys.readouterr())

    def ask(self, name, verb, seconds=20.0, **request):
        return ask_coordinator(
            load_operator_settings(self.files[name]), {"verb": verb, "reason": "", **request}, seconds
        )

    def log(self):
        return json.loads(self.say("alice", "runs", "--log", "--json")[1])["commands"]


@pytest.fixture
def away(tmp_path, capsys):
    with Federation(tmp_path, "one", "two") as f:
        yield Away(f, capsys)


def send_as_device(f, name):
    """Send a command with the keys of a device, on the topic that the broker allows to it."""
    keys, keyring = credentials.of_device(str(f.fleet.folder_of(name)), f.name, name, "", "")
    peer = Peer(name, f.address(name))
    try:
        peer.next(Connected)
        me = Identity(name, int(time.time()), keys)
        link = CommandSender(me, keyring, Topics(f.name), peer.mqtt, True, Clock())
        link.send(CommandRequest(secrets.token_bytes(16), "stop", b'{"run": "demo"}'))
        assert peer.mqtt.flush(10)
    finally:
        peer.mqtt.close()


def test_remote_operators_can_give_the_commands_that_their_grants_allow(away, capsys):
    f = away.f
    code, said = away.say("alice", "runs")
    assert code == 1 and "no coordinator answers on" in said and "nothing is queued" in said
    assert said.count("\n") == 1 and "Traceback" not in said
    f.service()
    f.wait_until(lambda: away.say("alice", "runs")[0] == 0, "the service")
    away.experiment.write_text(EXPERIMENT.replace("quorum = 2", "quorum = 3"))
    code, said = away.say("alice", "submit", str(away.experiment))
    assert code == 1 and "2 devices are enrolled (one, two), but policy.quorum is 3" in said
    away.experiment.write_text(EXPERIMENT)
    assert away.say("alice", "submit", str(away.experiment)) == (0, "demo: demo is submitted\n")
    f.wait_until(lambda: "running" in away.say("bob", "runs")[1], "the run to begin")
    code, said = away.say("bob", "stop", "demo")
    assert code == 1 and said.startswith("demo: bob has no grant 'run', which stop needs; whoever")
    assert "`protofleet enrol approve root/requests/bob.request --grants view,run`" in said
    code, said = away.say("carol", "show", "demo")
    assert code == 1 and said.startswith("demo: carol has no grant 'view', which show needs; whoever")
    # A device that has its keys, and a topic at the broker, is not an operator.
    send_as_device(f, "one")
    unknown = 'protofleet_rejected_total{reason="unknown_sender"'
    f.wait_until(
        lambda: any(key.startswith(unknown) and value for key, value in f.metrics().items()), "the count"
    )
    # A command that is sent twice has one effect and one line in the log.
    name = secrets.token_hex(16)
    paused = [away.ask("alice", "pause", id=name, run="demo") for _ in range(2)]
    assert paused[0] == paused[1] and paused[0]["verdict"] == "done"
    assert [(one["operator"], one["verb"], one["verdict"]) for one in away.log()] == [
        ("alice", "submit", "refused"), ("alice", "submit", "done"), ("bob", "stop", "denied"),
        ("alice", "pause", "done"),
    ]  # fmt: skip
    looked_at = str(away.ask("bob", "show", run="demo")["revision"])
    assert f"revision {looked_at}\n" in away.say("bob", "show", "demo")[1]
    code, said = away.say("alice", "stop", "demo", "--revision", "1")
    assert code == 1 and f"demo has changed: it has revision {looked_at} and not 1" in said
    assert "look at it with `protofleet show demo --operator FILE`" in said
    assert away.say("alice", "stop", "demo", "--revision", looked_at)[0] == 0
    code, said = away.say("bob", "follow", "demo")
    assert code == 1 and said.startswith("demo: stopped: stopped by alice")


def test_a_revoked_operator_gets_no_answer_and_the_other_operators_do(away):
    f = away.f
    service = f.service()
    f.wait_until(lambda: away.say("bob", "runs")[0] == 0, "the service")
    statement = f.fleet.root / "records" / "bob.operator"
    kept = shutil.copy(statement, f.folder / "kept")
    authority = f.fleet.authority()
    revoke(authority, "bob", "")
    shutil.copy(kept, statement)  # The statement is restored, but the list of revocations counts.
    approval = read_approval_file(f.fleet.root / "approvals" / f"{COORDINATOR}.approval")
    confirm = expect_fingerprint(authority.fingerprint)
    install(f.fleet.folder_of(COORDINATOR), approval, confirm, authority.now(), durable=False)

    def is_refused():
        with contextlib.suppress(RunError):
            away.ask("bob", "runs", run="", seconds=1.0)
        return re.search("bob is not known here: .* has been revoked", f.log_of(service))

    f.wait_until(is_refused, "the revocation to count")
    with pytest.raises(RunError, match="no coordinator answers on .*/op/up/bob at"):
        away.ask("bob", "runs", run="", seconds=2.0)
    assert away.ask("alice", "runs", run="")["verdict"] == "done"


def test_a_submission_has_one_effect_if_the_coordinator_is_killed_before_it_sends_the_result(away):
    f, results = away.f, []
    service = f.service(planted=KILLED)
    f.wait_until(lambda: away.say("alice", "runs")[0] == 0, "the service")
    args = {"run": "demo", "experiment": EXPERIMENT, "after": "", "priority": 0}
    shell = threading.Thread(target=lambda: results.append(away.ask("alice", "submit", 60.0, **args)))
    shell.start()
    assert f.wait_for_end(service) == 9
    f.service()
    shell.join(70)
    assert [(one["verdict"], one["words"]) for one in results] == [("done", "demo is submitted")]
    assert [one["verb"] for one in away.log()] == ["submit"]


def test_a_coordinator_of_one_run_accepts_the_same_commands_within_the_same_grants(away):
    f = away.f
    coordinator = f.coordinator(policy=BOTH)
    f.wait_until(lambda: away.say("alice", "runs")[0] == 0, "the coordinator")
    assert away.say("bob", "runs")[1].startswith("run  waiting    0 devices are present; a")
    code, said = away.say("bob", "pause", "run")
    assert code == 1 and said.startswith(
        "run: bob has no grant 'run', which pause needs; whoever holds the root"
    )
    assert away.say("carol", "runs")[0] == 1
    # A command that is sent twice has one effect, and an operator cannot use the id of another operator.
    name = secrets.token_hex(16)
    paused = [away.ask("alice", "pause", id=name, run="run", reason="no power") for _ in range(2)]
    assert paused == [{"verdict": "done", "words": "the run pauses"}] * 2
    assert away.ask("carol", "resume", id=name, run="run")["words"] == "the run goes on"
    assert away.ask("carol", "pause", run="red")["words"] == "this coordinator conducts only run"
    assert "needs a coordinator with a queue" in away.say("alice", "submit", str(away.experiment))[1]
    assert away.say("alice", "extend", "run", "--rounds", "7", "--revision", "1")[0] == 1
    assert away.say("alice", "extend", "run", "--rounds", "7", "--revision", "3")[0] == 0
    done = [("bob", "pause", "denied"), ("alice", "pause", "done"), ("carol", "resume", "done")]
    done += [("alice", "submit", "refused"), ("alice", "extend", "conflict"), ("alice", "extend", "done")]
    assert [(one["operator"], one["verb"], one["verdict"]) for one in away.log()] == done
    assert {one["verb"] for one in away.log() if one["run"] != "run"} == {"submit"}
    assert "submit" not in away.say("alice", "show", "run")[1], "the run was not submitted"
    # The command that ends the process gets its result.
    assert away.say("alice", "stop", "run", "--reason", "enough") == (0, "run: the run is stopped\n")
    assert f.wait_for_end(coordinator) == 0, f.last_words()
    code, said = away.say("alice", "runs")
    assert code == 1 and "no coordinator answers on" in said


def test_a_command_on_one_run_has_one_effect_if_the_coordinator_is_killed_before_the_result(away):
    f, results = away.f, []
    coordinator = f.coordinator(policy=BOTH, planted=KILLED)
    f.wait_until(lambda: away.say("alice", "runs")[0] == 0, "the coordinator")
    shell = threading.Thread(target=lambda: results.append(away.ask("alice", "pause", 60.0, run="run")))
    shell.start()
    assert f.wait_for_end(coordinator) == 9
    f.coordinator(policy=BOTH)
    shell.join(70)
    assert results == [{"verdict": "done", "words": "the run pauses"}]
    assert [(one["verb"], one["words"]) for one in away.log()] == [("pause", "the run pauses")]
    assert away.ask("bob", "show", run="run")["state"] == "paused"


class Shell:
    """A shell of an operator in which `protofleet follow` runs."""

    def __init__(self, away, name, run):
        self.log = away.f.folder / f"follow-{secrets.token_hex(4)}.log"
        line = ["follow", run, "--operator", str(away.files[name])]
        self.process = Process("follow", [sys.executable, "-m", "protofleet", *line], self.log)
        self.process.start()
        away.f.processes.append(self.process)

    def lines(self):
        return self.log.read_text().splitlines()


def test_an_operator_who_follows_a_run_gets_its_lines_and_can_give_commands_with_the_same_keys(away):
    f = away.f
    service = f.service()
    f.wait_until(lambda: away.say("alice", "runs")[0] == 0, "the service")
    away.say("alice", "submit", str(away.experiment))
    shell = Shell(away, "alice", "demo")
    f.wait_until(lambda: shell.lines(), "the first line")
    # These commands go through the connection of the shell that follows.
    began = time.monotonic()
    assert away.say("alice", "pause", "demo", "--reason", "lunch")[0] == 0
    f.wait_until(lambda: "demo: alice: pause: the run is pausing" in shell.lines(), "the line of the pause")
    assert time.monotonic() - began < PATIENCE
    # The coordinator is killed. The shell continues with the lines of the next one.
    service.kill()
    f.service()
    f.wait_until(lambda: away.say("bob", "runs")[0] == 0, "the next service")
    for name in ("one", "two"):
        f.device(name)
    assert away.say("alice", "resume", "demo")[0] == 0
    assert f.wait_for_end(shell.process) == 0
    lines = shell.lines()
    assert [line for line in lines if "round 1 of 2: 2 of 2 devices answered" in line], lines
    assert [line for line in lines if "final evaluation" in line], lines
    assert lines[-1] == "demo: finished" and all(line.startswith("demo: ") for line in lines)
    assert len([line for line in lines if "round 2 of 2: 2 of 2" in line]) == 1, "each line is printed once"


def test_two_shells_of_one_operator_follow_a_run_and_ctrl_c_ends_one_of_them_in_order(away):
    f = away.f
    f.service()
    f.wait_until(lambda: away.say("alice", "runs")[0] == 0, "the service")
    away.say("alice", "submit", str(away.experiment))
    first = Shell(away, "alice", "demo")
    f.wait_until(first.lines, "the first line")
    second = Shell(away, "alice", "demo")
    f.wait_until(second.lines, "the first line of the second shell")
    first.process.child.send_signal(signal.SIGINT)
    assert f.wait_for_end(first.process) == 128 + signal.SIGINT
    assert "Traceback" not in first.log.read_text()
    assert away.say("alice", "stop", "demo")[0] == 0
    assert f.wait_for_end(second.process) == 1
    assert second.lines()[-1].startswith("demo: stopped: stopped by alice")


def test_an_operator_follows_a_coordinator_of_one_run_to_its_end(away):
    f = away.f
    coordinator = f.coordinator(policy=BOTH, rounds=2)
    f.wait_until(lambda: away.say("bob", "runs")[0] == 0, "the coordinator")
    shell = Shell(away, "bob", "run")
    f.wait_until(shell.lines, "the first line")
    f.device("one"), f.device("two")
    assert f.wait_for_end(coordinator) == 0, f.last_words()
    assert f.wait_for_end(shell.process) == 0
    assert "run: finished" in shell.lines()
    assert [line for line in shell.lines() if "round 2 of 2: 2 of 2 devices answered" in line]
    denied = Shell(away, "carol", "run")
    assert f.wait_for_end(denied.process) == 1
    assert "no coordinator answers on" in denied.log.read_text()


def test_a_shell_that_follows_a_coordinator_of_one_run_ends_when_another_shell_stops_the_run(away):
    f = away.f
    coordinator = f.coordinator(policy=BOTH)
    f.wait_until(lambda: away.say("bob", "runs")[0] == 0, "the coordinator")
    shells = [Shell(away, "bob", "run"), Shell(away, "alice", "run")]
    for shell in shells:
        f.wait_until(shell.lines, "the first line")
    assert away.say("alice", "stop", "run", "--reason", "enough") == (0, "run: the run is stopped\n")
    assert f.wait_for_end(coordinator) == 0, f.last_words()
    for shell in shells:
        assert f.wait_for_end(shell.process) == 1, shell.lines()
        assert shell.lines()[-1] == "run: stopped" and "no coordinator" not in shell.log.read_text()
