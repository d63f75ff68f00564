"""Another process, without protofleet, gets the same scores from the export of every rule."""

from dataclasses import replace

import onnxruntime
import pytest
import torch

from protofleet.lab.export.check import MOST_DIFFERENCE, difference, same_labels
from protofleet.lab.export.template import template_of
from protofleet.methods.served.card import CardError
from protofleet.methods.served.served import served
from protofleet.methods.served.template import fill
from tests.lab.export.answered import answers_of
from tests.methods.served.trained import each_way, learned, model_of, plan_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # most of it is one fixture
# Each of these rules has its own operators; the other ways to predict use one of them with other numbers.
GRAPHS = [
    ("fedavg", "predict"), ("fedlsa", "predict"), ("fedlsa", "anchor"), ("fedproto", "predict"), ("fedhp", "predict"),
    ("fedplcc", "prototype"), ("fedsr", "predict"), ("fednh", "predict"), ("fedpall", "predict"),
    ("fedncm", "predict"), ("ghofl:nb", "predict"), ("ghofl:qda", "predict"),
]  # fmt: skip


def cases():
    for method, way in each_way():
        forms = ["onnx", "pt2"] if (method, way) in GRAPHS else ["torchscript"]
        yield f"{method}-{way}", *model_of(method, way), forms


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def answers(folder):
    return answers_of(cases(), folder, 200)


def test_exported_models_give_the_same_labels_and_nearly_the_same_scores(answers):
    assert len(answers) == 60 + len(GRAPHS)
    worst = {file: difference(found["seven"], wanted) for file, (wanted, found) in answers.items()}
    assert {file: value for file, value in worst.items() if value > MOST_DIFFERENCE} == {}
    assert all(same_labels(found["seven"], wanted) for wanted, found in answers.values())


def test_a_single_sample_gets_the_same_scores_as_in_a_batch(answers):
    for wanted, found in answers.values():
        assert found["one"].argmax() == wanted[0].argmax()
        assert difference(found["one"], wanted[:1]) <= MOST_DIFFERENCE


def onnx_scores(content, samples):
    return onnxruntime.InferenceSession(content).run(None, {"samples": samples.numpy()})[0]


@pytest.mark.parametrize(
    "method, way", [("fedproto", "predict"), ("fedplcc", "prototype"), ("fedsr", "predict")]
)
def test_a_template_is_filled_with_the_tensors_of_another_model(method, way):
    model, card = model_of(method, way)
    template, with_offsets = template_of(model, card)
    samples = card.input.drawn(5, seed=8)
    other = served(learned(plan_of(method))["device-1"], card.input, way)
    with torch.no_grad():
        assert difference(onnx_scores(template, samples), model(samples).numpy()) <= MOST_DIFFERENCE
        for numbers in other.parameters():
            numbers.add_(0.01 * torch.randn(numbers.shape, generator=torch.Generator().manual_seed(1)))
        filled = fill(template, with_offsets, other.state_dict())
        assert difference(onnx_scores(filled, samples), other(samples).numpy()) <= MOST_DIFFERENCE
    assert fill(filled, with_offsets, model.state_dict()) == template
    with pytest.raises(CardError, match="has no offsets"):
        fill(template, card, model.state_dict())
    weight = next(name for name in with_offsets.offsets if name.startswith("features."))
    shape = {**model.state_dict(), weight: torch.zeros(1)}
    with pytest.raises(CardError, match="they are from different runs"):
        fill(template, with_offsets, shape)
    lacking = {name: value for name, value in model.state_dict().items() if name != weight}
    with pytest.raises(CardError, match="but the model does not"):
        fill(template, with_offsets, lacking)
    far = {
        **with_offsets.offsets,
        weight: replace(with_offsets.offsets[weight], at=1 << 40),
    }
    with pytest.raises(CardError, match="does not fit into the template"):
        fill(template, replace(with_offsets, offsets=far), model.state_dict())
