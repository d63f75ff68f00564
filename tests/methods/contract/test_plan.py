"""Tests of which network a device may run, and of the message that it gets for any other network."""

import inspect
import json

import pytest
import torch

from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.first_weights import FirstWeights
from protofleet.methods.contract.plan import Network, Plan, methods_for_mixed_networks, read_plan
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.settings.reader import SettingsError

OWN = Network("cnn4", 64)


def test_network_words_names_all_networks_of_a_run():
    named = FirstWeights("w.safetensors@sha256:" + "a" * 64)
    common = "fml", 3, 1, 0, 16, Network("cnn_bn")
    assert Plan("fedavg", *common[1:]).network_words == "cnn_bn"
    assert Plan(*common).network_words == "cnn_bn, mutual cnn_bn"
    assert Plan(*common, mutual=Network("cnn4")).network_words == "cnn_bn, mutual cnn4"
    frozen = Plan("fedavg", *common[1:], init=named, freeze="backbone")
    assert frozen.network_words == "cnn_bn, first weights w.safetensors, backbone frozen"


def test_a_device_may_have_its_own_network_if_the_method_shares_no_weights():
    plan = Plan("fedproto", 3, 1, network=Network("cnn_bn", 64))
    assert type(plan.device_model(OWN).features) is type(plan.model().features)
    assert plan.device_model(OWN).embedding_size == plan.model().embedding_size == 64
    sizes = [sum(p.numel() for p in model.parameters()) for model in (plan.device_model(OWN), plan.model())]
    assert sizes[0] != sizes[1]


def test_another_network_is_refused_by_fedavg_and_the_error_names_methods_that_allow_it():
    with pytest.raises(
        SettingsError,
        match=r"fedavg needs the same network .*: network.name is cnn4 on .* and cnn_bn in the run;.*fedproto",
    ):
        Plan("fedavg", 3, 1, network=Network("cnn_bn", 64)).device_model(OWN)


@pytest.mark.parametrize("method", ["fedncm", "fed3r", "fedavg"])
@pytest.mark.parametrize("own, words", [
    ({"layer": 4}, "network.layer is 4 on this device and 10 in the run"),
    ({"layer": 10, "pool": 2}, "network.pool is 2 on this device and left out in the run"),
    ({"layer": 10, "embedding_size": 8}, "network.embedding_size is 8 on this device and left out in the run"),
])  # fmt: skip
def test_another_layer_or_pool_or_projector_of_a_device_is_refused_with_both_values(method, own, words):
    plan = Plan(method, 3, 3, size=16, network=Network("efficientnet_lite0", layer=10))
    with pytest.raises(SettingsError) as refused:
        plan.device_model(Network("efficientnet_lite0", **own))
    assert words in str(refused.value) and "leave `network` out on the device" in str(refused.value)


def test_a_device_may_name_the_same_network_as_the_run():
    plan = Plan("fedavg", 3, 1, network=OWN)
    assert type(plan.device_model(OWN)) is type(plan.device_model(None))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (Network("cnn4"), "cnn4 gives 512; set network.feature_size = 64 on"),
        (Network("mlp", 64), "mlp gives 16; set network.embedding_size = 64 on"),
    ],
)
def test_another_embedding_size_is_refused_with_the_setting_that_helps(own, words):
    """In mlp, a projector follows the features, so another number of features would not help."""
    with pytest.raises(SettingsError, match=f"prototypes have 64 numbers.* {words}"):
        Plan("fedproto", 3, 1, network=Network("cnn_bn", 64)).device_model(own)


@pytest.mark.parametrize("method", ["lgfedavg", "fedpall"])
def test_another_kind_of_head_is_refused_only_if_the_method_shares_the_head(method):
    run, own = Network("cnn_bn", 64), Network("cnn4", 64, head="mlp")
    words = (
        f"{method} shares the head: the run's head is linear, but .*cnn4 is mlp; set network.head = 'linear'"
    )
    with pytest.raises(SettingsError, match=words):
        Plan(method, 3, 1, network=run).device_model(own)
    assert Plan("fedproto", 3, 1, network=run).device_model(own).embedding_size == 64


def test_methods_for_mixed_networks_send_weights_only_of_the_parts_that_all_share():
    """A method that sends weights of the whole network cannot mix networks, even if its file says so."""
    for name in names():
        plan = Plan(name, 3, 1, size=16, network=Network("cnn23"))
        server = plan.server_half()
        downloads = {key for key in server.payload() if key.startswith("weights.")}
        heads = {f"weights.head.{key}" for key in server.model.head.state_dict()}
        shared = {"network": downloads, "head": heads, "embedding": set(), "nothing": set()}[load(name).alike]
        if load(name).mutual:  # All devices share the whole network; a device's own network is another one.
            shared = downloads
        assert downloads <= shared, f"{name} sends {downloads - shared}"
    assert set(methods_for_mixed_networks()) <= set(names())


def test_a_method_that_reads_the_number_of_rounds_states_why_it_cannot_change():
    """A statistics method only tells a lack of samples in the last planned round, and this may be earlier."""
    harmless = "protofleet.methods.parts.statistics"
    for name in names():
        halves = {half for end in (load(name).Server, load(name).Client) for half in end.__mro__[:-2]}
        files = {inspect.getmodule(half) for half in halves}
        reads = [
            file for file in files if file.__name__ != harmless and "self.rounds" in inspect.getsource(file)
        ]
        assert bool(reads) == bool(load(name).fixed_rounds), f"{name}: {reads}"


def test_the_head_mlp_is_the_classifier_of_fedpall():
    net = Plan("fedavg", 10, 1, network=Network("cnn_bn", 256, head="mlp")).model()
    linear = [m for m in net.head.modules() if isinstance(m, torch.nn.Linear)]
    assert [m.out_features for m in linear] == [512, 512, 10] and linear[0].in_features == 256
    with pytest.raises(ValueError, match="head is 'deep', it must be one of linear, mlp"):
        Network("cnn_bn", head="deep")


def test_a_plan_may_have_1_or_3_channels():
    plan = Plan("fedavg", 10, 1, size=28, network=Network("cnn_mnist"), channels=1)
    assert sum(p.numel() for p in plan.model().parameters()) == 582_026
    assert read_plan(plan.encode()) == plan
    with pytest.raises(ValueError, match="channels is 2, it must be 1"):
        Plan("fedavg", 10, 1, channels=2)


def test_any_network_can_have_a_projector():
    net = Plan("fedlsa", 10, 1, network=Network("cnn_bn", 64, embedding_size=21)).model()
    assert (net.feature_size, net.embedding_size) == (64, 21)
    assert net.embed(torch.zeros(2, 3, 32, 32)).shape == (2, 21) and net.head.in_features == 21
    assert net.embed(torch.randn(8, 3, 32, 32)).min() < 0  # The whole sphere is used, not one orthant.
    with pytest.raises(
        ValueError, match="embedding_size is 0, but must be 1 or more; leave out embedding_size"
    ):
        Plan("fedlsa", 10, 1, network=Network("cnn_bn", embedding_size=0)).model()


@pytest.mark.parametrize("shape", [(128,), (6, 128), (3, 32, 48), (5, 16, 16), (1, 4, 4)])
def test_a_plan_contains_a_shape_for_samples_that_are_not_square_images(shape):
    plan = Plan("fedavg", 2, 1, network=Network("mlp"), shape=shape)
    table = json.loads(plan.encode())
    assert tuple(table["shape"]) == shape and not {"size", "channels"} & table.keys()
    assert read_plan(plan.encode()) == plan and plan.input_shape == InputShape(shape)


def test_a_plan_of_square_images_has_the_same_bytes_with_shape_and_with_size():
    """Otherwise devices of earlier versions would leave, and each stored plan would get another hash."""
    said, short = Plan("fedavg", 2, 1, shape=(1, 28, 28)), Plan("fedavg", 2, 1, size=28, channels=1)
    assert said.encode() == short.encode() and b"shape" not in said.encode()
    assert said.input_shape == short.input_shape


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"shape": (6, 128), "size": 64},
            "shape is .6, 128. and size is 64; shape alone is enough, leave size out",
        ),
        ({"shape": (6, 128), "channels": 1}, "and channels is 1; shape alone is enough, leave channels out"),
        ({"shape": (2, 3, 4, 5)}, r"it must be \[F\], \[C, T\], \[C, H, W\]"),
        ({"shape": (65_536, 65_536)}, "4,294,967,296 numbers per sample; at most 16,777,216 are allowed"),
        ({"shape": (6, 0)}, "each number must be at least 1 and at most 65_536"),
    ],
)
def test_an_impossible_shape_is_refused_with_value_and_limit(wrong, told):
    with pytest.raises(ValueError, match=told):
        Plan("fedavg", 2, 1, **wrong)
