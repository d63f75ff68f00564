"""Every rule, and networks of each kind, exported: another process, without protofleet, gets the same answers."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch

from protofleet.deploy.export.check import MOST_DIFFERENCE, difference, same_labels
from protofleet.deploy.export.formats import FILES, encoded
from protofleet.deploy.export.template import template_of
from protofleet.methods.contract.overview import NoSamples
from protofleet.methods.contract.plan import Network
from protofleet.methods.nets.catalog import RECIPES
from protofleet.methods.served.card import CardError
from protofleet.methods.served.scaling import input_of
from protofleet.methods.served.served import served
from protofleet.methods.served.template import fill
from tests.methods.served.trained import card_of, each_way, learned, model_of, plan_of

pytestmark = pytest.mark.slow
# Each has operators of its own; the other ways to predict are one of these behind other numbers.
GRAPHS = [
    ("fedavg", "predict"), ("fedlsa", "predict"), ("fedlsa", "anchor"), ("fedproto", "predict"), ("fedhp", "predict"),
    ("fedplcc", "prototype"), ("fedsr", "predict"), ("fednh", "predict"), ("fedpall", "predict"),
]  # fmt: skip
# Deep ones take up to a minute each as ONNX; `torch.export`, which ONNX is made of, shows the others.
SMALL = ("cnn23", "mlp")
OTHERS = ("cnn4", "cnn_fednh_conv", "resnet10", "resnet18")
ANSWER = """
import json, pathlib, sys
sys.modules["protofleet"] = None
import numpy as np, onnxruntime, torch
folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("*.npy")):
    x = np.load(path)
    for file in sorted(folder.glob(path.stem + ".model.*")):
        if file.suffix == ".onnx":
            net = onnxruntime.InferenceSession(file)
            found = [net.run(None, {"samples": one})[0] for one in (x, x[:1])]
        else:
            load = torch.jit.load(file) if file.suffix == ".pt" else torch.export.load(file).module()
            with torch.no_grad():
                found = [load(torch.from_numpy(one)).numpy() for one in (x, x[:1].copy())]
        np.savez(folder / (file.name + ".scores.npz"), seven=found[0], one=found[1])
"""


def network_model(name):
    plan = plan_of("fedavg", Network(name), size=max(16, RECIPES[name].smallest), classes=10)
    model = served(plan.client_half(NoSamples(), ""), input_of(plan))
    return model, card_of(plan, model, "predict")


def cases():
    for method, way in each_way():
        forms = ["onnx", "pt2"] if (method, way) in GRAPHS else ["torchscript"]
        yield f"{method}-{way}", *model_of(method, way), forms
    for name in (*SMALL, *OTHERS):
        yield name, *network_model(name), ["onnx" if name in SMALL else "pt2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def answers(folder):
    """By file, the scores of its model and those of the file."""
    wanted = {}
    for name, model, card, forms in cases():
        x = card.input.drawn(7, seed=3)
        np.save(folder / f"{name}.npy", x.numpy())
        with torch.no_grad():
            scores = model(x).numpy()
        for form in forms:
            file = f"{name}.{FILES[form]}"
            (folder / file).write_bytes(encoded(form, model, card))
            wanted[file] = scores
    subprocess.run([sys.executable, "-I", "-c", ANSWER, str(folder)], check=True, timeout=200)
    return {file: (scores, np.load(folder / f"{file}.scores.npz")) for file, scores in wanted.items()}


def test_labels_are_equal_and_scores_within_a_hundred_thousandth_of_the_largest(answers):
    assert len(answers) == 35 + len(GRAPHS) + len(SMALL) + len(OTHERS)
    worst = {file: difference(found["seven"], wanted) for file, (wanted, found) in answers.items()}
    assert {file: value for file, value in worst.items() if value > MOST_DIFFERENCE} == {}
    assert all(same_labels(found["seven"], wanted) for wanted, found in answers.values())


def test_one_sample_alone_is_taken_for_the_same(answers):
    for wanted, found in answers.values():
        assert found["one"].argmax() == wanted[0].argmax()
        assert difference(found["one"], wanted[:1]) <= MOST_DIFFERENCE


def onnx_scores(content, samples):
    return onnxruntime.InferenceSession(content).run(None, {"samples": samples.numpy()})[0]


@pytest.mark.parametrize(
    "method, way", [("fedproto", "predict"), ("fedplcc", "prototype"), ("fedsr", "predict")]
)
def test_a_template_is_filled_with_another_model_without_onnx(method, way):
    model, card = model_of(method, way)
    template, with_offsets = template_of(model, card)
    samples = card.input.drawn(5, seed=8)
    other = served(learned(plan_of(method))["device-1"], card.input, way)
    with torch.no_grad():
        assert difference(onnx_scores(template, samples), model(samples).numpy()) <= MOST_DIFFERENCE
        for weight in other.parameters():
            weight.add_(0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
        filled = fill(template, with_offsets, other.state_dict())
        assert difference(onnx_scores(filled, samples), other(samples).numpy()) <= MOST_DIFFERENCE
    assert fill(filled, with_offsets, model.state_dict()) == template
    with pytest.raises(CardError, match="says no offsets"):
        fill(template, card, model.state_dict())
    shape = {**model.state_dict(), "features.0.weight": torch.zeros(1)}
    with pytest.raises(CardError, match="they are of different runs"):
        fill(template, with_offsets, shape)
    lacking = {name: value for name, value in model.state_dict().items() if name != "features.0.weight"}
    with pytest.raises(CardError, match=r"has no features\.0\.weight"):
        fill(template, with_offsets, lacking)
    far = {
        **with_offsets.offsets,
        "features.0.weight": replace(with_offsets.offsets["features.0.weight"], at=1 << 40),
    }
    with pytest.raises(CardError, match="beyond the template's end"):
        fill(template, replace(with_offsets, offsets=far), model.state_dict())
