"""A device notifies systemd, writes a status file, and can be drained between two tasks."""

import socket

import pytest

from protofleet.edge_client.host.status_file import StatusFile, read_status
from protofleet.edge_client.host.systemd import NotifySocket, SystemdNotifier
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.base import Done
from tests.support.small_federation import simulation


@pytest.fixture
def manager(tmp_path):
    """Open a socket in the place of systemd's, and yield the notifier and a function that reads its messages."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.bind(path)
        door.setblocking(False)

        def said():
            words = []
            while True:
                try:
                    words.append(door.recv(4096).decode())
                except BlockingIOError:
                    return words

        yield NotifySocket({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000"}), said


def to_its_end(sim):
    """Run the simulation until every update has its receipt and the devices wait for another run."""
    for agent in sim.agents.values():
        agent.run_end.stays = True
    sim.run(
        until=lambda: sim.service.finished and not any(a.view.awaits_receipt for a in sim.agents.values())
    )


def test_a_process_notifies_the_systemd_watchdog_from_its_loop(tmp_path, manager):
    systemd, said = manager
    sim = simulation(tmp_path / "run", "fedavg")
    watched = SystemdNotifier(sim.agents["device-0"], systemd)
    watched.wake(0.0)
    assert said() == ["WATCHDOG=1\nSTATUS=not connected to the broker"]
    assert watched.wake_at == 10.0, "a third of WatchdogSec"
    watched.take(Done(lambda: None), 1.0)
    assert said() == [], "once every ten seconds is enough"
    to_its_end(sim)
    watched.take(Done(lambda: None), 11.0)
    assert said() == ["WATCHDOG=1\nSTATUS=idle; last round 4"]  # 3 rounds and the last evaluation


def test_notify_does_nothing_without_a_service_manager():
    NotifySocket({}).notify("READY=1")
    assert NotifySocket({}).seconds == 0


def test_the_status_file_states_the_progress_of_a_run(tmp_path):
    sim = simulation(tmp_path / "run", "fedavg")
    agent, path = sim.agents["device-0"], tmp_path / "status.json"
    file = StatusFile(path, "1.2.3", 9)
    assert read_status(path) is None
    file.write(agent.view)
    before = read_status(path)
    assert (before.connected, before.heard, before.accepted, before.settings) == (False, False, 0, 9)
    to_its_end(sim)
    file.write(agent.view)
    after = read_status(path)
    assert after.connected and after.heard and not after.working and not after.waiting
    assert (after.accepted, after.refused, after.round) == (4, 0, 4)
    unchanged = path.stat().st_ino
    file.write(agent.view)
    assert path.stat().st_ino == unchanged, "what has not changed is not written again"


def test_a_damaged_or_foreign_status_file_is_ignored(tmp_path):
    path = tmp_path / "status.json"
    for text in ("", "{", '{"pid": 1}', '{"unheard": 1}', "[]"):
        path.write_text(text)
        assert read_status(path) is None


def test_a_drained_device_ends_after_the_receipt_of_its_current_update(tmp_path):
    """A device that is drained in the middle of its work still delivers the update."""
    sim = simulation(tmp_path / "run", "fedavg")
    agent = sim.agents["device-1"]
    sim.run(until=lambda: agent.view.working and agent.view.receipts["accepted"] == 1)
    agent.take(Done(agent.drain), sim.clock.now)
    assert not agent.finished, "it still works on a task"
    sim.run(until=lambda: agent.finished)
    assert agent.view.problem == "" and agent.state.last_round == 2
    assert agent.view.receipts["accepted"] == 2, "its current update has its receipt"
    sim.boot_device("device-1")  # a later start continues where it stopped
    to_its_end(sim)
    assert sim.service.run.machine.round >= 3 and sim.agents["device-1"].view.receipts["accepted"] >= 1


def test_a_drained_device_without_a_task_ends_at_once(tmp_path):
    agent = simulation(tmp_path / "run", "fedavg").agents["device-0"]
    agent.take(Done(agent.drain), 0.0)
    assert agent.finished and agent.view.problem == ""


def test_a_status_file_in_a_missing_folder_is_refused_with_a_fix(tmp_path):
    with pytest.raises(SettingsError, match="there is no folder .*/run: make the folder, or name a file in"):
        StatusFile(tmp_path / "run" / "status.json", "1.2.3", 9)


def test_a_device_continues_if_the_folder_of_its_status_file_disappears(tmp_path, caplog):
    sim, folder = simulation(tmp_path / "run", "fedavg"), tmp_path / "status"
    folder.mkdir()
    file, agent = StatusFile(folder / "status.json", "1.2.3", 9), sim.agents["device-0"]
    folder.rmdir()
    file.write(agent.view)
    file.write(agent.view)
    assert caplog.text.count("cannot be written") == 1
    folder.mkdir()
    file.write(agent.view)
    assert read_status(folder / "status.json").software == "1.2.3"
