"""Tests of how many numbers are sent with the papers' networks: the closed forms against oracles.json."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from protofleet.methods import fedavg, fedhp, fedpall, fedsa
from protofleet.methods.contract.cost import Sizes, parameters
from protofleet.methods.nets import catalog, mlp
from protofleet.methods.nets.base import Net
from tests.methods.test_oracles import CASES


def oracle(name):
    return CASES[name]["inputs"], CASES[name]["expected"]


def built(name, classes=10, image=(3, 32, 32), **sizes):
    with torch.device("meta"):
        return catalog.build(name, classes=classes, image=image, **sizes)


def of_fedavg(model):
    """Return the number of weights that a device of FedAvg sends, which is also the number that it receives."""
    cost = fedavg.METHOD.cost(Sizes(model, held=model.classes))
    assert cost.up == cost.down
    return cost.up["weights"]


def test_the_costs_of_fedhp_and_fedavg_equal_the_oracle():
    given, expected = oracle("comm.fedhp")
    mnist = (1, 28, 28)
    flat = {"mnist": built("cnn_mnist_conv", image=mnist), "cifar": built("cnn_fednh_conv")}
    for name, model in flat.items():
        assert (model.classes, model.embedding_size) == (given["C"], given[f"d_{name}"])
        cost = fedhp.METHOD.cost(Sizes(model, held=given["C"]))
        assert sum(cost.up.values()) == sum(cost.down.values()) == expected[f"fedhp_{name}"]
    assert of_fedavg(built("cnn_mnist", image=mnist)) == expected["fedavg_mnist"]
    small = of_fedavg(built("cnn_fednh_small"))
    assert small == expected["fedavg_cifar_paper"] == expected["conv64_conv64_fc384_fc10nobias"]
    assert of_fedavg(built("cnn_fednh")) == expected["fednh_repo_conv2cifar"]


def test_the_cost_of_fedpall_equals_the_oracle(monkeypatch):
    monkeypatch.setattr(mlp, "HIDDEN", 512)
    given, expected = oracle("comm.fedpall")
    backbone = built("resnet50").features
    assert parameters(backbone) == given["resnet50_backbone"]

    def cost(clients, examples=0):
        return fedpall.METHOD.cost(
            Sizes(Net(nn.Identity(), given["d"], given["K"]), given["K"], examples, clients)
        )

    down = cost(given["N"]).down
    assert down["classifier"] == expected["classifier"]
    assert down["amplifier"] == expected["amplifier_N5"]
    assert cost(4).down["amplifier"] == expected["amplifier_N4"]
    whole = given["resnet50_backbone"] + down["classifier"]
    assert whole == expected["fedavg_params"]
    papers = down["classifier"] + down["amplifier"]
    with_prototypes = papers + down["prototypes"]
    assert (papers, with_prototypes) == (expected["download_paper"], expected["download_with_prototypes"])
    assert papers / whole == pytest.approx(expected["download_ratio_paper"], abs=1e-12)
    assert with_prototypes / whole == pytest.approx(expected["download_ratio_with_prototypes"], abs=1e-12)
    samples = expected["break_even_features"]
    features, more = (cost(given["N"], n).up["features"] for n in (samples, samples + 1))
    assert features == expected["upload_of_12122_features"] <= whole < more
    assert features / whole == pytest.approx(expected["upload_ratio_12122"], abs=1e-12)


def test_the_costs_of_fedsa_and_fedavg_equal_the_oracle():
    given, expected = oracle("comm.fedsa")
    model = built("cnn4", classes=given["C"], feature_size=given["D"])
    cost = fedsa.METHOD.cost(Sizes(model, held=given["C"], first_round=True))
    assert cost.down == {"anchors": expected["download"]}
    assert cost.up["prototypes"] == expected["upload_max"]
    assert (of_fedavg(model), parameters(model.head)) == (expected["cnn4_params"], expected["head"])
