"""What a device keeps of its own models: the last, and the best by validation; and never at the cost of training."""

import errno
import logging

import pytest

from protofleet.edge_client.trainer.job import GLOBAL, PERSONAL
from protofleet.edge_client.trainer.kept_models import BEST, LAST, KeptModels, kept_file
from protofleet.methods.served.kept import Origin, read_kept
from protofleet.protocol.storage.disk import Disk
from tests.methods.served.trained import device_0, plan_of

METHOD = "fedavg"


def models(folder, method=METHOD, disk=None):
    plan = plan_of(method)
    return KeptModels(folder, Origin(plan, "device-0", plan.network, ("a", "b", "c")), disk or Disk(False))


def publish(kept, number, validation, kind=PERSONAL):
    metrics = {f"accuracy.test.{kind}": 0.5}
    if validation is not None:
        metrics[f"accuracy.validation.{kind}"] = validation
    kept.publish(kind, device_0(METHOD), number, metrics)


def rounds(folder):
    found = {}
    for chosen in (LAST, BEST):
        if kept_file(folder, chosen).exists():
            found[chosen] = read_kept(kept_file(folder, chosen)).card.round
    return found


def test_the_last_is_kept_and_the_first_of_the_best(tmp_path):
    kept = models(tmp_path)
    for number, validation in enumerate((0.2, 0.7, 0.7, 0.4), 1):
        publish(kept, number, validation)
    assert rounds(tmp_path) == {LAST: 4, BEST: 2}
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "best.safetensors",
        "last.safetensors",
    ]


def test_a_later_process_goes_on_with_the_choice(tmp_path):
    publish(models(tmp_path), 2, 0.7)
    later = models(tmp_path)
    publish(later, 3, 0.6)
    assert rounds(tmp_path) == {LAST: 3, BEST: 2}
    publish(later, 4, 0.8)
    assert rounds(tmp_path) == {LAST: 4, BEST: 4}


def test_a_run_that_begins_again_begins_its_choice_again(tmp_path):
    publish(models(tmp_path), 5, 0.9)
    publish(models(tmp_path), 1, 0.1)  # the same plan, a new run
    assert rounds(tmp_path) == {LAST: 1, BEST: 1}
    publish(models(tmp_path, "fedprox"), 3, 0.05)  # another plan
    assert rounds(tmp_path) == {LAST: 3, BEST: 3}


def test_without_validation_samples_there_is_no_best(tmp_path):
    publish(models(tmp_path), 1, None)
    assert rounds(tmp_path) == {LAST: 1}


def test_the_model_of_all_is_not_its_own(tmp_path):
    publish(models(tmp_path), 1, 0.5, GLOBAL)
    assert rounds(tmp_path) == {}


class Full(Disk):
    def __init__(self, free=1 << 40):
        super().__init__(False)
        self.free = free

    def free_bytes(self, folder):
        return self.free

    def sync(self, path):
        pass

    def rename(self, source, target):
        raise OSError(errno.ENOSPC, "no space", str(target))


@pytest.mark.parametrize("disk", [Full(), Full(free=1000)], ids=["in the middle", "before"])
def test_a_full_disk_costs_the_copy_and_one_line_and_leaves_nothing_half_written(tmp_path, caplog, disk):
    publish(models(tmp_path), 1, 0.5)
    before = kept_file(tmp_path, LAST).read_bytes()
    caplog.set_level(logging.WARNING)
    kept = models(tmp_path, disk=disk)
    for number in (2, 3):
        publish(kept, number, 0.9)
    assert caplog.text.count("the device's own model is not kept") == 1
    assert rounds(tmp_path) == {LAST: 1, BEST: 1} and kept_file(tmp_path, LAST).read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "best.safetensors",
        "last.safetensors",
    ]
