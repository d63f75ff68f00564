"""The best global model by validation is the one that the summary names, also if the coordinator dies at any time."""

import errno

import numpy as np
import pytest

from protofleet.coordinator.models.best import BestModel, read_best
from protofleet.coordinator.models.saved import read_saved_run, read_state
from protofleet.coordinator.observe.curves import best, measurements
from protofleet.coordinator.observe.record import RoundRecord
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.base import Member
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError

MEMBERS = {"a": Member("a", 3)}


class Run:
    """The rounds of a coordinator as this sink sees them; round n begins with a state in which every value is n."""

    def __init__(self, folder, disk=None):
        self.spool = Spool(folder / "coordinator", disk=disk or Disk(False))
        self.spool.start_run("x", "{}", 1)
        self.lines = []
        self.begin()

    def begin(self):
        self.sink = BestModel(self.spool, self.lines)

    def restart(self, folder):
        self.spool.close()
        self.spool = Spool(folder / "coordinator", durable=False)
        self.begin()

    def round(self, number, *means, written=True, sink=True, devices=None):
        self.spool.save(number, 0, ["a"], MEMBERS, {"w": np.full(9, number, np.float32)})
        domains = {f"d{i}": mean for i, mean in enumerate(means)}
        line = {"round": number, "validation": {"global": domains}, "accuracy": {"global": domains}}
        line["validation_by_device"] = {"global": devices} if devices else {}
        if written:
            self.lines.append(line)
        if sink:
            self.sink.round_ended(
                RoundRecord(
                    number, 0, "training", validation=line["validation"],
                    validation_by_device=line["validation_by_device"],
                )
            )  # fmt: skip

    @property
    def chosen(self):
        found = best(measurements(self.lines, "global"))
        return found["point"] + 1

    def kept(self, folder):
        number, state = read_saved_run(folder / "coordinator").best()
        assert state["w"].tolist() == [number] * 9
        return number


@pytest.mark.parametrize(
    "means", [(0.1, 0.5, 0.5, 0.3), (0.9, 0.1, 0.9), (0.1, 0.2, 0.3), (0.3, 0.3, 0.3), (0.0, 0.0)]
)
def test_the_saved_best_state_is_the_state_that_the_summary_names(tmp_path, means):
    run = Run(tmp_path)
    for number, mean in enumerate(means, 1):
        run.round(number, mean, mean / 2)
        assert run.kept(tmp_path) == run.chosen
    assert len(list((tmp_path / "coordinator" / "best").glob("*.body"))) == 1


HONEST = {"a": (0.5, 0.6, 0.7), "b": (0.4, 0.6, 0.65), "c": (0.9, 0.93, 0.94)}


@pytest.mark.parametrize(
    ("order", "claims", "chosen"),
    [((0, 1, 2), (1.0, 0.0, 0.0), 3), ((2, 1, 0), (0.0, 0.5, 1.0), 1), ((0, 2, 1), (0.0, 0.0, 1.0), 2)],
)
def test_one_device_of_four_does_not_decide_which_model_is_the_best(tmp_path, order, claims, chosen):
    """The device reports false accuracies for the best, the worst or a later model. A restart changes no choice."""
    run = Run(tmp_path)
    for number, (point, claim) in enumerate(zip(order, claims, strict=True), 1):
        devices = {**{name: values[point] for name, values in HONEST.items()}, "liar": claim}
        run.round(number, sum(devices.values()) / 4, devices=devices)
        assert run.kept(tmp_path) == run.chosen
        run.restart(tmp_path)
    assert run.chosen == chosen


def test_a_coordinator_that_dies_between_the_line_and_the_copy_makes_the_copy_in_its_replay(tmp_path):
    run = Run(tmp_path)
    run.round(1, 0.2)
    run.round(2, 0.6, sink=False)
    run.restart(tmp_path)
    assert run.kept(tmp_path) == 1
    run.round(2, 0.6, written=False)
    assert run.kept(tmp_path) == run.chosen == 2


def test_a_replay_does_not_change_the_best_model_and_later_rounds_can(tmp_path):
    run = Run(tmp_path)
    run.round(1, 0.2)
    run.round(2, 0.6)
    run.restart(tmp_path)
    run.round(2, 0.9, written=False)  # the line that is already written counts
    run.round(3, 0.6)
    assert run.kept(tmp_path) == run.chosen == 2
    run.round(4, 0.7)
    assert run.kept(tmp_path) == run.chosen == 4


def test_a_run_without_validation_saves_no_best_model(tmp_path):
    run = Run(tmp_path)
    run.round(1)
    assert read_best(tmp_path / "coordinator") is None


class FullOnce(Disk):
    full = True

    def replace(self, target, data, mode=None, durable=True):
        if self.full and target.name == "best.json":
            raise OSError(errno.ENOSPC, "no space", str(target))
        super().replace(target, data, mode, durable)


def test_a_best_model_that_found_the_disk_full_is_saved_when_there_is_room(tmp_path):
    run = Run(tmp_path, FullOnce(False))
    run.round(1, 0.2)
    assert read_best(tmp_path / "coordinator") is None
    run.spool.disk.full = False
    run.sink.entry("asked", {})
    assert run.kept(tmp_path) == 1


def test_a_damaged_best_state_is_reported_and_its_file_stays(tmp_path):
    run = Run(tmp_path)
    run.round(1, 0.2)
    path = next((tmp_path / "coordinator" / "best").glob("*.body"))
    path.unlink()  # it is a hard link to the snapshot
    path.write_bytes(b"x")
    with pytest.raises(DamagedError, match="is damaged: its bytes do not match the hash in its name"):
        run.kept(tmp_path)
    assert path.exists()
    with pytest.raises(DamagedError, match="is missing"):
        read_state(tmp_path, "00")
