"""Tests of EfficientNet-Lite0: its sizes, its padding, its input and its settings."""

from __future__ import annotations

import pytest
import torch

from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.plan import Network, Plan, read_plan
from protofleet.methods.nets import catalog as nets
from protofleet.methods.nets.efficientnet_lite0 import Convolution, Pixels
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.methods.tiny import same

NAME = "efficientnet_lite0"


def built(classes=10, side=32, **own):
    return nets.build(NAME, classes=classes, image=(3, side, side), own=tuple(own.items()))


def weightless(classes=10, side=32, **own):
    with torch.device("meta"):
        return built(classes, side, **own)


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_the_network_has_the_published_number_of_parameters():
    assert count(weightless(layer=10).features) == 700_768
    assert count(weightless(1000, layer=16, pool=1)) == 4_652_008


@pytest.mark.parametrize(
    ("own", "features"),
    [({}, 1008), ({"layer": 4}, 360), ({"layer": 16, "pool": 1}, 1280), ({"layer": 15, "pool": 2}, 4 * 320)],
)
def test_the_feature_size_is_the_number_of_channels_of_all_cells(own, features):
    network = built(**own).eval()
    assert network.feature_size == network.features(torch.zeros(1, 3, 32, 32)).shape[1] == features


def test_a_cell_contains_the_mean_of_its_part_of_the_feature_map():
    map_of, whole = built(side=48, pool=1).features.eval(), built(side=48).features.eval()
    x = torch.rand(2, 3, 48, 48)
    every = torch.nn.Sequential(*list(whole)[:-3])(x)
    assert every.shape == (2, 112, 3, 3) and torch.equal(whole(x).reshape(2, 112, 3, 3), every)
    assert torch.allclose(map_of(x), every.mean((2, 3)))


@pytest.mark.parametrize(("kernel", "before", "after"), [(3, 0, 1), (5, 1, 2)])
def test_a_layer_that_halves_the_image_pads_more_at_the_end(kernel, before, after):
    layer, side = Convolution(1, 1, kernel, 2).double(), 8
    x = torch.rand(1, 1, side, side, dtype=torch.float64)
    weight, found = layer.conv.weight[0, 0], layer.conv(layer.pad(x))[0, 0]
    padded = torch.zeros(before + side + after, before + side + after, dtype=torch.float64)
    padded[before : before + side, before : before + side] = x[0, 0]
    assert found.shape == (side // 2, side // 2)
    for i in range(side // 2):
        for j in range(side // 2):
            window = padded[2 * i : 2 * i + kernel, 2 * j : 2 * j + kernel]
            assert torch.isclose(found[i, j], (window * weight).sum(), rtol=1e-9)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_a_layer_that_keeps_the_image_size_pads_evenly(kernel):
    layer, x = Convolution(1, 1, kernel), torch.rand(1, 1, 7, 7)
    same_padding = torch.nn.functional.conv2d(x, layer.conv.weight, padding=kernel // 2)
    assert torch.allclose(layer.conv(layer.pad(x)), same_padding)


def test_the_input_is_converted_to_the_range_of_the_trained_weights():
    pixels = torch.arange(256.0)
    assert torch.allclose(Pixels(0)(pixels / 127.5 - 1), (pixels - 127) / 128, atol=1e-6)
    x = torch.rand(2, 3, 16, 16)
    assert Pixels(0)(x).shape == x.shape and Pixels(24)(x).shape == (2, 3, 24, 24)
    assert torch.allclose(Pixels(24)(torch.ones(1, 3, 16, 16)), torch.ones(1))


def test_a_network_with_fewer_layers_is_the_first_part_of_the_whole_network():
    whole, cut = built(layer=16, pool=1).eval(), built(layer=10, pool=1).eval()
    missing = cut.features.load_state_dict(
        {k: v for k, v in whole.features.state_dict().items() if k in cut.features.state_dict()}
    )
    assert not missing.missing_keys
    x, parts = torch.rand(2, 3, 32, 32), dict(whole.features.named_children())
    until = [part for name, part in parts.items() if name in dict(cut.features.named_children())]
    assert torch.equal(torch.nn.Sequential(*until)(x), cut.features(x))


def test_each_party_makes_the_same_network_from_a_plan():
    plan = Plan("fedavg", 10, 1, size=16, network=Network(NAME, layer=4, pool=2, image_size=32))
    received = read_plan(plan.encode())
    assert received == plan and received.model().feature_size == 4 * 40
    torch.rand(5)
    assert same(received.model().state_dict(), plan.model().state_dict())
    assert b'"network": {"head": "linear", "image_size": 32, "layer": 4' in plan.encode()
    usual = Plan("fedavg", 10, 1, size=16, network=Network(NAME))
    assert b"layer" not in usual.encode() and usual.digest != plan.digest


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (
            {"name": "cnn23", "layer": 4},
            "the network cnn23 has no setting layer; leave it out, or take efficient",
        ),
        ({"name": NAME, "layer": 17}, "network.layer is 17, it must be at least 0 and at most 16"),
        (
            {"name": NAME, "image_size": 16},
            "image_size is 16, but images have 32x32 pixels and are only enlarged",
        ),
        ({"name": NAME, "pool": 0}, "network.pool is 0, it must be at least 1 and at most 16"),
    ],
)
def test_wrong_settings_of_the_network_are_refused_in_one_line(network, message):
    table = {"name": "a", "rounds": 1, "method": {"name": "fedavg"}, "network": network, "data": {"size": 32}}
    with pytest.raises(SettingsError, match=message) as refused:
        decode(Experiment, table)
    assert "\n" not in str(refused.value)


def test_a_layer_with_an_empty_feature_map_is_refused_with_the_setting_that_helps():
    with pytest.raises(
        ValueError, match="layer 11 .* from 32x32 on, not 16x16; set network.image_size to 32"
    ):
        built(side=16, layer=11)
    assert built(side=16, layer=16, image_size=32, pool=1).feature_size == 1280
