"""A board fills its model.onnx without any package for ONNX, and the file then holds the board's model."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from protofleet.cli.main import main
from protofleet.edge_client.serving.predictor import open_model
from protofleet.edge_client.serving.publisher import ModelOrigin, ModelPublisher
from protofleet.edge_client.serving.settings import ModelSettings
from protofleet.edge_client.trainer.job import TRAIN, LocalJob
from protofleet.lab.export.template import template_of
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.served.scaling import input_of
from protofleet.methods.served.served import served
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.names import EVALUATE
from tests.support.small_federation import NAMES, plan, shard

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_a_filled_template_gives_the_same_scores_in_onnx_runtime_as_in_torch(tmp_path, method, capsys):
    pytest.importorskip("onnxscript")
    made, data = plan(method, 2), shard(0)
    half = made.client_half(data.train, "owl", validation=data.validation)
    first = ModelPublisher(ModelSettings(), tmp_path / "first", ModelOrigin("owl", None), Disk(durable=False))
    job = LocalJob(half, data, made.variant.reports, models=first.of(made, NAMES))
    job.run(EVALUATE, 3, to_numpy(dict(made.server_half().payload())))
    first.versions.accept(made.digest.hex(), 2)
    card = open_model(first.versions.named("current").folder).card
    model, about = template_of(served(half, input_of(made)), card)
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "model.onnx").write_bytes(model)
    about = replace(about, files={"model.onnx": hashlib.sha256(model).hexdigest()})
    (tmp_path / "template" / "card.json").write_text(about.text())

    settings = ModelSettings(template=str(tmp_path / "template"))
    board = ModelPublisher(settings, tmp_path / "board", ModelOrigin("owl", None), Disk(durable=False))
    job = LocalJob(half, data, made.variant.reports, models=board.of(made, NAMES))
    job.run(TRAIN, 2, to_numpy(dict(made.server_half().payload())))
    learned = {name: value + 0.01 for name, value in made.server_half().payload().items()}
    job.run(EVALUATE, 3, to_numpy(learned if method == "fedavg" else dict(made.server_half().payload())))
    board.versions.accept(made.digest.hex(), 2)
    folder = board.versions.named("current").folder
    assert (folder / "model.onnx").read_bytes() != model
    raw = input_of(made).drawn(7).numpy()
    by_onnx, by_torch = (open_model(folder, onnx).scores(raw) for onnx in (True, False))
    known = np.isfinite(by_torch)
    assert (by_onnx.argmax(1) == by_torch.argmax(1)).all()
    assert np.abs(by_onnx - by_torch)[known].max() <= 1e-5 * np.abs(by_torch[known]).max()

    picture = tmp_path / "picture.png"
    Image.fromarray(torch.from_numpy(raw[0]).byte().permute(1, 2, 0).numpy()).save(picture)
    labels = []
    for options in ((), ("--onnx",)):
        assert main(["predict", str(picture), "--model", str(tmp_path / "board"), "--json", *options]) == 0
        labels.append(json.loads(capsys.readouterr().out)["predictions"][0]["class"])
    assert labels[0] == labels[1]
