"""A publisher copies a trained half into a version; the copy can fail, but the training goes on."""

import errno
import json

import numpy as np
import pytest
import torch

from protofleet.edge_client.serving.publisher import ModelOrigin, ModelPublisher
from protofleet.edge_client.serving.settings import ModelSettings
from protofleet.edge_client.serving.template import Template
from protofleet.edge_client.trainer.job import MODELS_UNWRITTEN, TRAIN, LocalJob
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.nets.weights_file import read_weights, sha256_of_file
from protofleet.methods.served.card import CardError, read_card
from protofleet.methods.served.rebuild import rebuild
from protofleet.methods.served.scaling import input_of
from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.names import EVALUATE
from tests.support.small_federation import NAMES, plan, shard

DATA = shard(0)


def publisher(folder, disk=None, **settings):
    return ModelPublisher(
        ModelSettings(**settings), folder, ModelOrigin("owl", None), disk or Disk(durable=False)
    )


def job_of(method, published):
    made = plan(method, 2)
    half = made.client_half(DATA.train, "owl", validation=DATA.validation)
    return LocalJob(half, DATA, made.variant.reports, models=published.of(made, NAMES)), made


def first_payload(made):
    return to_numpy(dict(made.server_half().payload()))


def cards(published):
    return [read_card((version.folder / "card.json").read_bytes()) for version in published.versions.whole()]


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fedlsa", "fedpall"])
def test_a_served_model_predicts_the_same_bits_as_the_client_half(tmp_path, method):
    published = publisher(tmp_path)
    job, made = job_of(method, published)
    received = first_payload(made)
    job.run(EVALUATE, 3, received)
    published.versions.accept(made.digest.hex(), 2)
    (card,) = cards(published)
    current = published.versions.named("current")
    assert (card.round, card.device) == (2, None if made.variant.reports == "global" else "owl")
    model = rebuild(card, read_weights(current.folder / "model.safetensors"))
    raw = input_of(made).drawn(9)
    job.half.model.eval()
    with torch.no_grad():
        assert torch.equal(model(raw), job.half.predict((2 * raw - 255) / 255))
    assert card.classes == NAMES and card.plan_sha256 == made.digest.hex() == current.plan


def test_the_default_served_model_is_the_one_whose_accuracy_the_paper_reports(tmp_path):
    for method, kind in (("fedavg", "global"), ("fedproto", "personal")):
        published = publisher(tmp_path / method)
        job, made = job_of(method, published)
        _, measured = job.run(TRAIN, 2, first_payload(made))
        round = 2 if kind == "personal" else 1  # a task contains the model of the previous round
        published.versions.accept(made.digest.hex(), 2)
        (version,) = published.versions.whole()
        assert (version.kind, version.round) == (kind, round)
        assert version.validation == measured[f"accuracy.validation.{kind}"]


def test_the_initial_weights_of_a_run_are_not_published(tmp_path):
    published = publisher(tmp_path)
    job, made = job_of("fedavg", published)
    job.run(TRAIN, 1, first_payload(made))
    assert not published.versions.folder.exists()


def test_a_method_without_a_global_model_is_logged_once_if_serve_is_global(tmp_path, caplog):
    published = publisher(tmp_path, serve="global")
    for _ in range(2):
        job, made = job_of("fedproto", published)
        job.run(TRAIN, 2, first_payload(made))
    assert caplog.text.count("models.serve is global, but fedproto has no global model") == 1
    assert not published.versions.folder.exists()


class FullDisk(Disk):
    """A disk that fills up while a version is written, or has too little room before."""

    def __init__(self, at="", free=1 << 30):
        super().__init__(durable=False)
        self.at, self.free = at, free

    def before_step(self, step, what):
        if step == self.at:
            raise OSError(errno.ENOSPC, "No space left on device")

    def free_bytes(self, folder):
        return self.free


@pytest.mark.parametrize(
    "disk", [FullDisk("sync"), FullDisk("point"), FullDisk("rename"), FullDisk(free=60_000)]
)
def test_a_full_disk_prevents_the_copy_but_not_the_training(tmp_path, caplog, disk):
    published = publisher(tmp_path / "full", disk)
    job, made = job_of("fedavg", published)
    without, _ = job_of("fedavg", publisher(tmp_path / "none", serve="off"))
    unwritten = 0
    for round in (2, 3):
        answer, measured = job.run(TRAIN, round, first_payload(made))
        expected, _ = without.run(TRAIN, round, first_payload(made))
        unwritten += measured.pop(MODELS_UNWRITTEN)
        assert all(np.array_equal(answer[name], expected[name]) for name in expected)
    assert unwritten == 2
    assert caplog.text.count("no version of the model is written") == 1
    disk.at, disk.free = "", 1 << 30
    _, measured = job.run(TRAIN, 4, first_payload(made))
    assert MODELS_UNWRITTEN not in measured and published.versions.named("current")


def test_an_error_while_a_model_is_published_does_not_stop_the_training(tmp_path, caplog):
    published = publisher(tmp_path)
    job, made = job_of("fedavg", published)
    good, job.half.encoder = job.half.encoder, lambda rule: 1 / 0
    published.of(made, NAMES).publish("global", job.half, 1, {})
    job.half.encoder = good
    assert "ZeroDivisionError" in caplog.text and published.take_unwritten() == 1


def test_invalid_model_settings_are_refused_with_the_fault():
    for table, words in (
        ({"serve": "both"}, "serve is 'both', it must be one of auto, global, personal, off"),
        ({"keep": 0}, "keep is 0"),
        ({"on_model": "reload"}, "on_model"),
        ({"on_model": [""]}, "on_model begins with an empty word"),
        ({"folder": ""}, "folder is empty"),
        ({"hook": ["x"]}, "models.hook is not a setting"),
    ):
        with pytest.raises(SettingsError, match=words.replace("(", r"\(")):
            decode(ModelSettings, table, "models")


def test_a_template_is_filled_with_the_weights_of_each_version(tmp_path):
    """The card of the template states where the numbers of each tensor are; the bytes between them stay."""
    plain = publisher(tmp_path / "plain")
    job, made = job_of("fedavg", plain)
    job.run(EVALUATE, 3, first_payload(made))
    version = plain.versions.named("current")
    tensors = read_weights(version.folder / "model.safetensors")
    template, offsets, model = tmp_path / "template", {}, b"begin"
    for name, value in tensors.items():
        offsets[name] = {"at": len(model), "dtype": "F32", "shape": list(value.shape)}
        model += bytes(value.nbytes) + b"|"
    template.mkdir()
    (template / "model.onnx").write_bytes(model)
    files = {"model.onnx": sha256_of_file(template / "model.onnx")}
    card = json.loads((version.folder / "card.json").read_text()) | {"offsets": offsets, "files": files}
    (template / "card.json").write_text(json.dumps(card))
    published = publisher(tmp_path / "filled", template=str(template))
    job, _ = job_of("fedavg", published)
    job.run(EVALUATE, 3, first_payload(made))
    filled = (published.versions.named("current").folder / "model.onnx").read_bytes()
    assert filled == b"begin" + b"".join(value.numpy().tobytes() + b"|" for value in tensors.values())
    (template / "model.onnx").write_bytes(b"B" + model[1:])
    with pytest.raises(
        CardError, match="models.template .*model.onnx is not the file that the card names: its SHA"
    ):
        Template(template).filled(tensors, input_of(made))


def test_a_template_with_another_scaling_of_samples_is_refused(tmp_path):
    """Scaling is no tensor: the version would keep the template's scaling, while its card names another one."""
    (tmp_path / "model.onnx").write_bytes(b"")
    plain = publisher(tmp_path / "plain")
    job, made = job_of("fedavg", plain)
    job.run(EVALUATE, 3, first_payload(made))
    card = json.loads((plain.versions.named("current").folder / "card.json").read_text())
    card["files"] = {"model.onnx": sha256_of_file(tmp_path / "model.onnx")}
    card["input"] |= {"low": [-1.0], "high": [1.0]}
    (tmp_path / "card.json").write_text(json.dumps(card))
    words = r"takes samples of \[3, 8, 8\] from -1 to 1, but this device's samples are \[3, 8, 8\] from 0 to 255; exp"
    with pytest.raises(CardError, match=words):
        Template(tmp_path).filled({}, input_of(made))


def test_an_unusable_template_prevents_the_copy_and_is_logged(tmp_path, caplog):
    (tmp_path / "template").mkdir()
    published = publisher(tmp_path, template=str(tmp_path / "template"))
    job, made = job_of("fedavg", published)
    job.run(EVALUATE, 3, first_payload(made))
    assert (
        "template: No such file or directory; it names a folder" in caplog.text
        and not published.versions.whole()
    )
