"""The folder of the coordinator or a device restored from an older copy is reported, and the run can continue."""

import json
import re
import shutil
import signal
import subprocess
from dataclasses import replace

import pytest

from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.spool.older_copies import (
    ITS_OWN,
    OURS,
    OlderCopyDetector,
    OlderCopyError,
    go_on_from,
    require_newest,
)
from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.state.device import DeviceState
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.messages import Hello, Update
from tests.lab.local.test_run import command, lines, place, protofleet, wait_for_rounds
from tests.support.held_run import HeldRun
from tests.support.small_federation import POLICY, assert_same, simulation

__all__ = ["place"]  # a fixture
NAMES = ("device-0", "device-1", "device-2")


def reached(run, number, phase="train"):
    run.run(until=lambda: (run.service.run.machine.round, run.service.run.machine.asked) == (number, phase))
    return run


def last_answer(run, name):
    return next(((a.round, a.phase) for a in reversed(run.agents[name].state.saved.answers)), None)


def put_back(run, name, copy):
    """Kill a party, put an earlier copy of its folder in place, and start the party again."""
    run.kill(name)
    if name == "coordinator":
        run.service.run.spool.close()
    shutil.rmtree(run.folder / name)
    shutil.copytree(copy, run.folder / name)
    run.boot_coordinator() if name == "coordinator" else run.boot_device(name)


def older_coordinator(folder, method):
    """Return a run whose coordinator is back at round 2 while its devices have answered round 3."""
    run = reached(simulation(folder, method, policy=replace(POLICY, rounds=6)), 2)
    shutil.copytree(folder / "coordinator", folder / "copy")
    reached(run, 4)
    put_back(run, "coordinator", folder / "copy")
    return run


@pytest.mark.parametrize("method", ["fedavg", "fedpall"])
def test_devices_report_an_older_copy_of_the_coordinator_folder_and_the_run_can_continue(tmp_path, method):
    run = older_coordinator(tmp_path, method)
    run.run()
    words = run.service.stopped
    assert "coordinator is an older copy: it stands at round 2, and 3 of 3 devices" in words
    assert "\n" not in words and run.service.run.machine.attempt == 0, (
        "the run stops before it repeats a round"
    )
    run.service.run.spool.close()
    number = int(re.search(r"go on from it with `protofleet go-on \S+ --from-round (\d+)`", words)[1])
    go_on_from(tmp_path / "coordinator", number)
    run.boot_coordinator()
    assert run.service.run.spool.newest_round == number
    run.run()
    assert run.service.finished and not run.service.stopped


def test_one_device_that_lies_about_its_answered_rounds_does_not_end_the_run(tmp_path):
    run = reached(simulation(tmp_path, "fedavg"), 2)
    agent = run.agents["device-1"]
    name = agent.state.saved.answers[-1].object
    agent.link.send_update(Update("device-1", 3, "train", 5, bytes(32), {}, {}), bytes.fromhex(name))
    run.run()
    assert run.service.finished and not run.service.stopped
    assert (
        run.service.run.spool.fallbacks["folder"] == 0
        and run.service.run.participants.older_copies.counted["device-1", OURS] == 1
    )


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_only_a_majority_of_devices_can_report_the_coordinator_folder_as_an_older_copy(
    tmp_path, caplog, devices
):
    spool = Spool(tmp_path)
    present = ["device-1", "device-2", "device-3"]
    copies = OlderCopyDetector(spool, 60.0, lambda: 3)
    for hour in range(3):
        for device in present[:devices]:
            for number in range(100):  # for any message and any number of starts
                hello = Hello(device, 3, 10, holds=(bytes([number] * 32),))
                copies.hello_received(hello, number, b"", 3600.0 * hour + number)
                copies.answered(device, 2 + 100 * hour + number, 3600.0 * hour + number)
                copies.verdict([], 0.0)
    copies.verdict(present, 0.0)
    assert spool.fallbacks["folder"] == int(devices > 1)
    assert {device for device, _ in copies.counted} == set(present[:devices])
    assert len(caplog.records) <= 8 * devices + 1, "each device is logged five times, and then once an hour"
    spool.close()


@pytest.mark.parametrize(
    ("enrolled", "says", "ends"), [(2, 1, False), (3, 1, False), (4, 2, False), (3, 2, True), (1, 1, True)]
)
def test_only_a_majority_of_all_enrolled_devices_ends_a_run_also_if_the_others_are_absent(
    tmp_path, enrolled, says, ends
):
    spool = Spool(tmp_path)
    copies = OlderCopyDetector(spool, 60.0, lambda: enrolled)
    copies.start_listening(0.0)
    there = [f"device-{i}" for i in range(says)]
    for device in there:
        copies.answered(device, 29, 1.0)
    assert bool(copies.verdict(there, 100.0)) == ends
    assert spool.fallbacks["folder"] == int(says > 1 or enrolled == 1), (
        "the report of one of several devices raises no alert"
    )
    spool.close()


def test_a_line_of_a_round_that_the_folder_has_not_begun_reveals_an_older_copy(tmp_path):
    run = reached(simulation(tmp_path, "fedavg"), 2)
    require_newest(run.service.run.spool, 1)
    require_newest(
        run.service.run.spool, 2
    )  # The process died between the line and the snapshot of the next round.
    with pytest.raises(
        OlderCopyError, match=r"stands at round 2, and rounds.jsonl has round 3. .*--from-round 4"
    ):
        require_newest(run.service.run.spool, 3)
    with pytest.raises(
        OlderCopyError, match=r"knows of no round, and .* begin the run anew under another name"
    ):
        require_newest(Spool(tmp_path / "empty"), 3)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_run_can_only_continue_from_a_later_round_within_the_limit(tmp_path, number):
    run = reached(simulation(tmp_path, "fedavg"), 2)
    run.service.run.spool.close()
    with pytest.raises(SettingsError, match=rf"--from-round is {number}, it must be above 2 .* at most 4"):
        go_on_from(tmp_path / "coordinator", number)


def test_a_folder_without_a_run_cannot_continue(tmp_path):
    with pytest.raises(SettingsError, match="holds no run"):
        go_on_from(tmp_path / "coordinator", 3)
    assert not (tmp_path / "coordinator").exists()


def went_back(run):
    value = Metrics(run.service.run.view).registry.get_sample_value
    return sum(
        value("protofleet_older_copies_total", {"device": d, "whose": ITS_OWN}) or 0 for d in run.agents
    )


@pytest.mark.parametrize("method", ["fedavg", "fedpall"])
def test_an_older_copy_of_a_device_folder_is_reported_and_the_run_continues(tmp_path, caplog, method):
    run = reached(simulation(tmp_path, method), 2)
    shutil.copytree(tmp_path / "device-1", tmp_path / "copy")
    reached(run, 4, "evaluate")
    put_back(run, "device-1", tmp_path / "copy")
    run.run()
    said = "device-1 has answered round 3, and came back holding what it answered in round 1: its folder is an older"
    assert said in caplog.text and went_back(run) == 1
    assert run.service.finished and not run.service.stopped


def test_an_emptied_folder_of_a_device_is_reported_too(tmp_path, caplog):
    run = reached(simulation(tmp_path, "fedpall"), 2)
    run.kill("device-1")
    run.boot_device("device-1")
    reached(run, 3)
    DeviceState(tmp_path / "copy").boot(50)  # The clock makes this boot larger than the old boots.
    put_back(run, "device-1", tmp_path / "copy")
    run.run()
    assert (
        "device-1 has answered round 2, and came back holding nothing" in caplog.text and went_back(run) == 1
    )


def test_a_copy_from_an_earlier_phase_of_the_same_round_is_reported(tmp_path, caplog):
    run = simulation(tmp_path, "fedpall")
    run.run(until=lambda: last_answer(run, "device-1") == (2, "train"))
    shutil.copytree(tmp_path / "device-1", tmp_path / "copy")
    reached(run, 3)
    put_back(run, "device-1", tmp_path / "copy")
    run.run()
    said = "device-1 has answered round 2 mix, and came back holding what it answered in round 2 train: its folder"
    assert said in caplog.text and went_back(run) == 1


@pytest.mark.parametrize("kept", [1, 2])
def test_an_older_copy_is_reported_also_if_all_rounds_have_the_same_broadcast(tmp_path, caplog, kept):
    """The devices train alone: they get no broadcast, and their answers are empty."""
    run = reached(simulation(tmp_path, "singleset"), kept)
    shutil.copytree(tmp_path / "device-1", tmp_path / "copy")
    reached(run, 4, "evaluate")
    put_back(run, "device-1", tmp_path / "copy")
    run.run()
    held = "nothing" if kept == 1 else "what it answered in round 1"
    assert f"device-1 has answered round 3, and came back holding {held}: its folder" in caplog.text
    assert went_back(run) == 1 and run.service.finished


@pytest.mark.parametrize(
    "method",
    ["fedavg", *(pytest.param(m, marks=pytest.mark.slow) for m in ("fedpall", "fedplcc", "singleset"))],
)
def test_parties_that_restart_without_a_change_are_not_reported_as_older_copies(tmp_path, caplog, method):
    honest = simulation(tmp_path / "honest", method).run()
    run = simulation(tmp_path / "run", method)
    for number in (1, 2, 3):
        reached(run, number)
        for name in NAMES[number - 1 :]:
            run.kill(name)
            run.boot_device(name)
        run.run(until=lambda: run.service.run.machine.answered)
        run.kill("coordinator")
        run.boot_coordinator()
    run.run()
    assert went_back(run) == 0 and run.service.run.spool.fallbacks["folder"] == 0
    assert "older copy" not in caplog.text
    assert_same(honest, run)


ROUNDS = 12  # Both interrupts arrive before the run has ended, because `HeldRun` holds it until then.
RUN = ("run", "small.toml", "--set", f"rounds={ROUNDS}")


def interrupted(place, rounds):
    """Run until there are `rounds` lines of rounds, and interrupt the run before it can write many more."""
    held = HeldRun(place / f"held-{rounds}", rounds + 1)
    run = subprocess.Popen(
        command(*RUN), cwd=place, env=held.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_for_rounds(place, rounds)
    run.send_signal(signal.SIGINT)
    held.let_go()
    run.communicate(timeout=40)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_older_copies_of_the_folders_of_a_real_run_are_reported_and_the_run_continues(place):
    """It copies the coordinator's folder alone, all that the coordinator writes, or a device's folder."""
    (place / "small.toml").write_text(
        (place / "small.toml").read_text() + "[policy]\npatience_seconds = 6.0\n"
    )
    folder = place / "runs" / "small"
    interrupted(place, 2)
    shutil.copytree(folder, place / "copy")
    interrupted(place, len(lines(place)) + 3)
    newest = lines(place)[-1]["round"]

    def restore(*names):
        for name in names:
            target = folder / name
            shutil.rmtree(target) if target.is_dir() else target.unlink()
            copied = place / "copy" / name
            shutil.copytree(copied, target) if copied.is_dir() else shutil.copy(copied, target)

    restore("coordinator")
    refused = protofleet(*RUN, cwd=place)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert re.search(
        rf"older copy: it stands at round \d+, and rounds.jsonl has round {newest}\. Put the newest",
        refused.stderr,
    )
    restore("rounds.jsonl", "rounds.copy.jsonl")
    refused = protofleet(*RUN, cwd=place)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    told = re.search(
        r"of \d devices \(.*\) have answered round (\d+)\..*`protofleet (go-on .* --from-round \d+)`",
        refused.stderr,
    )
    assert told and int(told[1]) >= newest, refused.stderr
    assert protofleet(*told[2].split(), cwd=place).returncode == 0
    restore("devices/device-1")
    done = protofleet(*RUN, cwd=place, timeout=500)
    assert done.returncode == 0, done.stderr
    assert lines(place)[-1]["round"] == ROUNDS + 1 and json.loads((folder / "summary.json").read_text())
