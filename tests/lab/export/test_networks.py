"""Another process, without protofleet, gets the same scores from each bundled network in every format.

`make exports` includes the deepest networks, which take minutes, and networks with the layers of others.
"""

import os
import sys

import numpy as np
import pytest
import torch

from protofleet.lab.export.check import MOST_DIFFERENCE, difference, same_labels
from protofleet.lab.export.formats import encoded
from protofleet.methods.contract.overview import NoSamples
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.nets.catalog import RECIPES
from protofleet.methods.nets.weights_file import read_weights
from protofleet.methods.served.rebuild import rebuild
from protofleet.methods.served.scaling import input_of
from protofleet.methods.served.served import served
from tests.lab.export.answered import answers_of
from tests.methods.served.trained import card_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # most of it is one fixture
SHAPES = {1: lambda least: (least,), 2: lambda least: (6, least), 3: lambda least: (3, least, least)}
RUN = ("onnx", "pt2", "torchscript")
DEEP = {"resnet34", "resnet50", "resnet101", "resnet152", "googlenet", "mobilenet_v2", "efficientnet_lite0"}
# The same layers in other sizes as in resnet10, cnn4, cnn_fednh and cnn_mnist_conv.
ALIKE = {"resnet18", "cnn_mnist", "cnn_fednh_small", "cnn_fednh_conv"}
NETWORKS = sorted(RECIPES if os.environ.get("PROTOFLEET_DEEP") else RECIPES.keys() - DEEP - ALIKE)


def network_model(name):
    """Return a model of the network for the smallest samples that it takes and a few classes, with its card."""
    recipe = RECIPES[name]
    shape = SHAPES[max(recipe.ranks)](max(8, recipe.smallest))  # at least 8, as in settings
    made = {"size": shape[1]} if len(shape) == 3 else {"shape": shape}
    plan = Plan("fedavg", 3, rounds=1, network=Network(name), **made)
    half = plan.client_half(NoSamples(), "")
    with torch.no_grad():  # so that a batch norm has other statistics than a fresh one
        half.model.train()
        half.model(input_of(plan).drawn(8) / 255)
        half.model.eval()
    model = served(half, input_of(plan))
    return model, card_of(plan, model, "predict")


def cases(folder):
    for name in NETWORKS:
        model, card = network_model(name)
        rebuilds_to_the_bit(folder / f"{name}.safetensors", model, card)
        yield name, model, card, RUN


def rebuilds_to_the_bit(file, model, card):
    file.write_bytes(encoded("safetensors", model, card))
    x, again = card.input.drawn(7, seed=3), rebuild(card, read_weights(file))
    with torch.no_grad():
        assert np.array_equal(again(x).numpy(), model(x).numpy()), file.name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(scope="module")
def answers(folder):
    return answers_of(cases(folder), folder, 600)


def test_exported_networks_give_the_same_labels_and_nearly_the_same_scores(answers):
    assert len(answers) == len(NETWORKS) * len(RUN) and RECIPES.keys() > DEEP | ALIKE
    worst = {file: difference(found["seven"], wanted) for file, (wanted, found) in answers.items()}
    most = max(worst.values())
    sys.stdout.write(
        f"{len(NETWORKS)} networks, {len(worst)} files: at most {most:.1e} of the largest score\n"
    )
    assert {file: value for file, value in worst.items() if value > MOST_DIFFERENCE} == {}
    assert all(same_labels(found["seven"], wanted) for wanted, found in answers.values())


def test_a_single_sample_gets_the_same_scores_as_in_a_batch(answers):
    for file, (wanted, found) in answers.items():
        assert difference(found["one"], wanted[:1]) <= MOST_DIFFERENCE, file
