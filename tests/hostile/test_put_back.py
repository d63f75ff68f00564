"""Folders that are older copies, are damaged in two places, or are moved while they are in use."""

import json
import shutil
import time

from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import Federation

ALONE = Policy(quorum=1, settle_seconds=0.2)


def folder_of(f, name):
    return f.folder / "devices" / name


def killed_after(f, process, rounds):
    """Kill a device after these rounds, and wait until the other device has continued without it.

    The last answer of the killed device belongs to a round that is over.
    """
    f.wait_until(lambda: len(f.rounds()) >= rounds, f"{rounds} rounds")
    f.wait_until(lambda: len(f.rounds()[-1]["participants"]) == 2, "both to take part")
    process.kill()
    at = len(f.rounds())
    f.wait_until(lambda: len(f.rounds()) >= at + 3, "rounds without it")


def started_again(f, name):
    """Start a device in a later second than before, because a boot is at least the second of its start."""
    second = int(time.time())
    f.wait_until(lambda: int(time.time()) > second, "the next second")
    return f.device(name)


def test_an_older_copy_of_a_device_folder_is_reported_and_counted_also_without_broadcasts(tmp_path):
    with Federation(tmp_path, "one", "two", method={"name": "singleset"}, rounds=100_000, policy=ALONE) as f:
        coordinator, mine = f.coordinator(), folder_of(f, "one")
        one, _ = f.device("one"), f.device("two")
        f.wait_until(lambda: (mine / "device.previous.json").exists(), "its own answer")
        killed_after(f, one, 2)
        shutil.copytree(mine, tmp_path / "copy")
        at = len(f.rounds())
        one = started_again(f, "one")
        f.wait_until(
            lambda: any("one" in r["participants"] for r in f.rounds()[at:]), "it to take part again"
        )
        killed_after(f, one, at + 1)
        assert "came back holding" not in f.log_of(coordinator), "the folder has not changed"
        shutil.rmtree(mine)
        shutil.copytree(tmp_path / "copy", mine)
        one = started_again(f, "one")
        held = "and came back holding what it answered in round"
        f.wait_until(lambda: held in f.log_of(coordinator), "word of the copy")
        one.kill()
        shutil.rmtree(mine)
        started_again(f, "one")
        f.wait_until(lambda: "and came back holding nothing" in f.log_of(coordinator), "word of the loss")
        counted = [
            f.metrics().get(f'protofleet_older_copies_total{{device="{name}",whose="device"}}', 0.0)
            for name in ("one", "two")
        ]
        assert sum(counted) == 2


def test_a_device_that_lost_its_state_and_the_broadcast_of_its_update_ends_with_one_line(tmp_path):
    with Federation(tmp_path, "one", "two", method={"name": "fedpall"}, rounds=100_000, policy=ALONE) as f:
        coordinator = f.coordinator()
        one, _ = f.device("one"), f.device("two")
        previous = folder_of(f, "one") / "device.previous.json"
        f.wait_until(lambda: previous.exists() and '"half": "", ' not in previous.read_text(), "two answers")
        killed_after(f, one, 2)
        book = json.loads((folder_of(f, "one") / "device.json").read_text())["book"]["runs"][0]
        for name in (book["half"], book["broadcast"]):
            (folder_of(f, "one") / "objects" / f"{name}.body").unlink()
        for _ in range(2):  # The second start finds the loss as well.
            one = started_again(f, "one")
            assert f.wait_for_end(one) == 1
            assert "is lost, and its broadcast is lost too; put it back" in f.log_of(one).splitlines()[-1]
            assert "Traceback" not in f.log_of(one)
        farewell = 'protofleet_device_farewells_total{reason="damaged"}'
        f.wait_until(lambda: f.metrics()[farewell] == 2, "both farewells")
        assert "one leaves: damaged: the update for round" in f.log_of(coordinator)


def test_a_coordinator_whose_folder_is_moved_ends_with_one_line_and_continues_when_it_is_back(tmp_path):
    with Federation(tmp_path, "one", rounds=9000, policy=ALONE) as f:
        coordinator, _ = f.coordinator(), f.device("one", stays=True)
        f.wait_until(lambda: len(f.rounds()) >= 2, "two rounds")
        f.run.rename(f.folder / "elsewhere")
        assert f.wait_for_end(coordinator) == 1
        assert "put it back and start the coordinator again" in f.log_of(coordinator)
        assert "Traceback" not in f.log_of(coordinator) and not f.run.exists()
        (f.folder / "elsewhere").rename(f.run)
        ended = len(f.rounds())
        f.coordinator()
        f.wait_until(lambda: len(f.rounds()) > ended, "a further round")
