"""A device keeps the last of its own models and the best by validation, and this never disturbs training."""

import errno
import hashlib
import logging

import numpy as np
import pytest
import torch

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.scaling import Scale
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.serving.settings import ModelSettings
from protofleet.edge_client.trainer.job import GLOBAL, PERSONAL
from protofleet.edge_client.trainer.kept_models import BEST, LAST, KeptModels, kept_file
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.served.card import read_card
from protofleet.methods.served.kept import KeptOrigin, read_kept
from protofleet.methods.served.scaling import Scaling
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.messages import NOTHING
from tests.methods.served.trained import device_0, plan_of

METHOD = "fedavg"


def models(folder, method=METHOD, disk=None):
    plan = plan_of(method)
    return KeptModels(
        folder, KeptOrigin(plan, "device-0", plan.network, ("a", "b", "c")), disk or Disk(False)
    )


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


def test_the_last_model_and_the_first_of_the_best_models_are_kept(tmp_path):
    kept = models(tmp_path)
    for number, validation in enumerate((0.2, 0.7, 0.7, 0.4), 1):
        publish(kept, number, validation)
    assert rounds(tmp_path) == {LAST: 4, BEST: 2}
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "best.safetensors",
        "last.safetensors",
    ]


def test_a_later_process_continues_the_choice_of_the_best_model(tmp_path):
    publish(models(tmp_path), 2, 0.7)
    later = models(tmp_path)
    publish(later, 3, 0.6)
    assert rounds(tmp_path) == {LAST: 3, BEST: 2}
    publish(later, 4, 0.8)
    assert rounds(tmp_path) == {LAST: 4, BEST: 4}


def test_a_new_run_starts_a_new_choice_of_the_best_model(tmp_path):
    publish(models(tmp_path), 5, 0.9)
    publish(models(tmp_path), 1, 0.1)  # the same plan, a new run
    assert rounds(tmp_path) == {LAST: 1, BEST: 1}
    publish(models(tmp_path, "fedprox"), 3, 0.05)  # another plan
    assert rounds(tmp_path) == {LAST: 3, BEST: 3}


def test_no_best_model_is_kept_without_validation_samples(tmp_path):
    publish(models(tmp_path), 1, None)
    assert rounds(tmp_path) == {LAST: 1}


def test_the_global_model_is_not_kept(tmp_path):
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
def test_a_full_disk_prevents_the_copy_and_leaves_no_partial_file(tmp_path, caplog, disk):
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


@pytest.mark.parametrize("keep", [True, False])
def test_a_device_keeps_its_trained_model_unless_keep_models_is_false(tmp_path, keep):
    data = DataSettings(domain="optdigits", samples=20, test_samples=5, size=8)
    settings = DeviceSettings(
        "d", folder=str(tmp_path), data=data, threads=1, keep_models=keep, durable=False
    )
    plan = Plan("singleset", 10, rounds=1, size=8, network=Network("mlp"), hyper={"epochs": 1, "batch": 8})
    LocalTrainer(settings).start(plan).run("train", 1, NOTHING)
    assert kept_file(tmp_path, LAST).exists() == keep
    if keep:
        card = read_kept(kept_file(tmp_path, LAST)).card
        assert (card.device, card.method, card.classes) == ("d", "singleset", tuple("0123456789"))


PLUG_IN = """import numpy as np
from protofleet import Data
def load(request):
    held = np.load(request.root / "whole.npz")
    x = np.moveaxis(held["x"], -1, 1)
    return Data((x[8:], held["y"][8:]), (x[:8], held["y"][:8]), ["crop", "soil"])
DATA = load
"""


def kinds_of_samples(folder):
    """Return raw samples with the settings that read them: pixels as arrays and by a function, and scaled numbers."""
    folder.mkdir()
    dice = np.random.default_rng(0)
    pixels = dice.integers(0, 256, (40, 8, 8, 3), np.uint8)
    pixels[::2] //= 3
    rows = dice.normal(50, 10, (40, 6)).astype(np.float32)
    rows[::2] += 30
    y = np.arange(40) % 2
    for name, x in (("field", pixels), ("rows", rows)):
        np.savez(folder / f"{name}.npz", x=x[8:], y=y[8:], x_test=x[:8], y_test=y[:8])
    np.savez(folder / "whole.npz", x=pixels, y=y)
    (folder / "own.py").write_text(PLUG_IN)
    arrays = DataSettings("arrays", str(folder), "field", shape=(3, 8, 8), validation=0.0)
    own = DataSettings(root=str(folder), file=str(folder / "own.py"), shape=(3, 8, 8), validation=0.0)
    scale = Scale((60.0,), (20.0,))
    numbers = DataSettings("arrays", str(folder), "rows", shape=(6,), validation=0.0, scale=scale)
    images = np.moveaxis(pixels[:8], -1, 1)
    return {"pixels": (images, arrays), "by a function": (images, own), "numbers": (rows[:8], numbers)}


@pytest.mark.parametrize("kind", ["pixels", "by a function", "numbers"])
def test_kept_and_served_models_scale_raw_samples_like_the_training_data(tmp_path, kind):
    raw, data = kinds_of_samples(tmp_path / "data")[kind]
    allowed = (hashlib.sha256((tmp_path / "data/own.py").read_bytes()).hexdigest(),)
    settings = DeviceSettings(
        "d", folder=str(tmp_path / "state"), data=data, threads=1, durable=False, plugins=PlugIns((), allowed),
        models=ModelSettings(serve="personal"),
    )  # fmt: skip
    hyper = {"epochs": 1, "batch": 8, "lr": 0.01}
    plan = Plan("singleset", 2, rounds=1, network=Network("mlp"), hyper=hyper, **data.input_shape.settings())
    trainer = LocalTrainer(settings)
    trainer.start(plan).run("train", 1, NOTHING)
    kept = read_kept(kept_file(tmp_path / "state", LAST))
    (version,) = (tmp_path / "state").rglob("model.safetensors")
    for card in (kept.card, read_card((version.parent / "card.json").read_bytes())):
        found = Scaling(card.input)(torch.from_numpy(raw.astype(np.float32)))
        assert torch.allclose(found, trainer.data.test.x, atol=1e-6)
