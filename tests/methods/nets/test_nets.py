"""Tests of the networks: the parameter counts of the papers, and the properties that each network must have."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from protofleet.methods.nets import catalog as nets
from protofleet.methods.nets.mlp import amplifier, fedpall_classifier
from protofleet.methods.parts.local import LocalHyper, train
from tests.support.few_methods import few
from tests.support.small_federation import part

CLASSES = 7


def sample_of(name):
    """Return the input shape that a network takes: the shape of CIFAR's images, or of series."""
    return CIFAR if 3 in nets.RECIPES[name].ranks else nets.SERIES


every_network = pytest.mark.parametrize("name", nets.names())
every_image_network = pytest.mark.parametrize(
    "name", [name for name in nets.names() if 3 in nets.RECIPES[name].ranks]
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def weightless(name: str, classes: int = CLASSES, **options: object) -> nets.Net:
    """Return a network with shapes but without values, which is fast and enough to count and to check outputs."""
    with torch.device("meta"):
        return nets.build(name, classes=classes, **options)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def same(a: nn.Module, b: nn.Module) -> bool:
    theirs = b.state_dict()
    return all(torch.equal(v, theirs[k]) for k, v in a.state_dict().items())


# The papers' sizes: (weights + biases) layer by layer, and what the paper or its authors' code states.

CIFAR, MNIST = (3, 32, 32), (1, 28, 28)
PAPER_SIZES = [
    # FedLSA says "2 convolution and 3 linear layers"; MOON's simple-cnn is that, with 62,006.
    ("cnn23", CIFAR, 10, 456 + 2_416 + 48_120 + 10_164 + 850, 62_006),
    # FedSA's 4-layer CNN, what FedAvg sends in its CIFAR-100 comparison.
    ("cnn4", CIFAR, 100, 2_432 + 51_264 + 819_712 + 51_300, 924_708),
    # FedHP's table of messages: FedAvg on MNIST 582,026; on CIFAR and SVHN 725,952 "from FedNH" ...
    ("cnn_mnist", MNIST, 10, 832 + 51_264 + 524_800 + 5_130, 582_026),
    ("cnn_fednh_small", CIFAR, 10, 4_864 + 102_464 + 614_784 + 3_840, 725_952),
    # ... which FedNH's own Conv2Cifar exceeds by its 192 layer.
    ("cnn_fednh", CIFAR, 10, 4_864 + 102_464 + 614_784 + 73_920 + 1_920, 797_952),
    # RethinkFL's ResNet-10 (FPL, FedPLCC): stem, four stages, head; its unused encoder left out.
    ("resnet10", CIFAR, 10, 1_856 + 73_984 + 230_144 + 919_040 + 3_673_088 + 5_130, 4_903_242),
]


@pytest.mark.parametrize(("name", "image", "classes", "by_layer", "stated"), PAPER_SIZES)
def test_the_network_of_a_paper_has_as_many_parameters_as_the_paper_states(
    name, image, classes, by_layer, stated
):
    assert count(weightless(name, classes, image=image)) == by_layer == stated


@pytest.mark.parametrize(
    ("name", "image", "floats"), [("cnn_mnist_conv", MNIST, 1024), ("cnn_fednh_conv", CIFAR, 1600)]
)
def test_the_networks_of_fedhp_have_only_convolutions_with_a_flat_output(name, image, floats):
    net = weightless(name, image=image)
    assert net.embedding_size == floats  # FedHP sends 10 of these: 10,240 and 16,000 floats
    with_linear_layers = weightless(name.removesuffix("_conv"), image=image)
    convolutions = [m for m in with_linear_layers.modules() if isinstance(m, nn.Conv2d)]
    assert count(net.features) == sum(map(count, convolutions))


def test_the_networks_of_fedpall_have_the_sizes_of_the_paper():
    extractor = weightless("resnet50")
    assert extractor.feature_size == 2048
    assert count(extractor.features) == 23_508_032
    h, a = fedpall_classifier(2048, 10), amplifier(2048, 5)
    norms = 2 * (512 + 512)
    assert count(h) == (2048 * 512 + 512) + (512 * 512 + 512) + (512 * 10 + 10) + norms == 1_318_922
    assert count(a) == 2048 * 512 + 512 * 512 + 512 * 5 + norms == 1_315_328
    assert round(100 * count(h) / 23_508_032, 2) == 5.61  # "5.61 %" and "5.59 %" in FedPall's table
    assert round(100 * count(a) / 23_508_032, 1) == 5.6
    assert h(torch.randn(3, 2048)).shape == (3, 10)
    assert a(torch.randn(3, 2048)).shape == (3, 5)


def test_the_networks_of_fedpall_depend_only_on_the_seed():
    before = torch.get_rng_state()
    assert same(fedpall_classifier(8, 3, seed=1), fedpall_classifier(8, 3, seed=1))
    assert same(amplifier(8, 3, seed=1), amplifier(8, 3, seed=1))
    assert not same(amplifier(8, 3, seed=1), amplifier(8, 3, seed=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_resnet10_keeps_5760_floats_of_running_statistics():
    floats = [b for b in weightless("resnet10").buffers() if b.is_floating_point()]
    assert sum(b.numel() for b in floats) == 5_760


def test_cnn_bn_has_a_batch_norm_in_place_of_the_bias_of_each_convolution():
    net = weightless("cnn_bn", 10)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    norms = [m.num_features for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms == [c.out_channels for c in convolutions] == [32, 64, 128, 256]
    kernels = 9 * (3 * 32 + 32 * 64 + 64 * 128 + 128 * 256)
    assert count(net) == kernels + 2 * sum(norms) + (256 * 10 + 10) == 391_466


def test_embeddings_of_cnn23_have_positive_and_negative_values():
    embedded = nets.build("cnn23", classes=10).embed(torch.randn(8, *CIFAR))
    assert embedded.shape == (8, 84)
    assert (embedded < 0).any()  # A ReLU after the projector would leave only one orthant of the sphere.
    assert (embedded > 0).any()


def test_cnn23_has_the_same_number_of_parameters_for_a_large_image():
    assert count(weightless("cnn23", 10, image=(3, 224, 224))) == count(weightless("cnn23", 10)) == 62_006


# Properties that every network must have.


@every_network
def test_a_backward_pass_reaches_every_parameter_of_a_network(name):
    sample = sample_of(name)
    net = nets.build(name, classes=CLASSES, image=sample)
    x, y = torch.randn(4, *sample), torch.tensor([0, 1, 2, 6])
    features = net.features(x)
    assert features.shape == (4, net.feature_size)
    assert net.projector(features).shape == (4, net.embedding_size)

    before = torch.get_rng_state()
    scores = net(x)
    assert scores.shape == (4, CLASSES) == (4, net.classes)
    F.cross_entropy(scores, y).backward()
    assert torch.equal(torch.get_rng_state(), before), "a training step drew from the global generator"
    unreached = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert unreached == []


@pytest.mark.parametrize("name", few(nets.names(), 4))
def test_forward_applies_the_features_the_projector_and_the_head(name):
    net = nets.build(name, classes=CLASSES, feature_size=24, image=sample_of(name)).eval()
    x = torch.randn(2, *sample_of(name))
    with torch.no_grad():
        embedded = net.projector(net.features(x))
        assert torch.equal(net.embed(x), embedded)
        assert torch.equal(net(x), net.head(embedded))


@pytest.mark.slow
@every_network
def test_the_weights_of_a_network_depend_only_on_the_seed(name):
    torch.manual_seed(5)
    sample = sample_of(name)
    first = nets.build(name, classes=CLASSES, seed=3, image=sample)
    after_first = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), after_first), "building moved the global generator"
    again = nets.build(name, classes=CLASSES, seed=3, image=sample)  # Now torch has another global state.
    assert same(first, again)
    assert all(p.device.type == "cpu" and p.requires_grad for p in first.parameters())
    assert not torch.equal(
        first.head.weight, nets.build(name, classes=CLASSES, seed=4, image=sample).head.weight
    )


@every_network
@pytest.mark.parametrize("size", few([100, 1, 3000], 3))
def test_features_have_the_size_of_the_setting_feature_size(name, size):
    net = weightless(name, feature_size=size, image=sample_of(name))
    assert net.feature_size == size
    features = net.features(torch.empty(2, *sample_of(name), device="meta"))
    assert features.shape == (2, size)
    assert net.head(net.projector(features)).shape == (2, CLASSES)


@pytest.mark.slow
@every_image_network
@pytest.mark.parametrize("image", [(1, 28, 28), (3, 28, 28), (3, 64, 64), (3, 33, 47)])
def test_an_image_of_another_size_is_accepted_or_the_error_states_what_to_do(name, image):
    try:
        net = weightless(name, image=image)
    except ValueError as error:
        assert "not 1" in str(error)  # Networks with a colour stem refuse only grey images.
        assert image[0] == 1
        assert "convert the images or take one of cnn23" in str(error)
    else:
        x = torch.empty(2, *image, device="meta")
        assert net.features(x).shape == (2, net.feature_size)
        assert net(x).shape == (2, CLASSES)


@pytest.mark.slow
@every_image_network
def test_the_smallest_image_of_a_network_is_accepted_and_a_smaller_one_is_refused(name):
    smallest = nets.RECIPES[name].smallest
    for image in ((3, smallest, 40), (3, 40, smallest), (3, smallest, smallest)):
        x = torch.empty(2, *image, device="meta")
        assert weightless(name, image=image)(x).shape == (2, CLASSES)
    with pytest.raises(ValueError, match=f"from {smallest}x{smallest} on, not 40x{smallest - 1}"):
        weightless(name, image=(3, 40, smallest - 1))


def test_pooled_features_are_the_means_of_neighbours():
    whole = nets.build("resnet10", classes=3, seed=1).eval()
    halved = nets.build("resnet10", classes=3, seed=1, feature_size=256).eval()
    x = torch.randn(2, *CIFAR)
    with torch.no_grad():
        features = whole.features(x)
        pairs = torch.stack([(features[:, i] + features[:, i + 1]) / 2 for i in range(0, 512, 2)], dim=1)
        torch.testing.assert_close(halved.features(x), pairs)


def test_an_unknown_network_is_refused_with_the_names_of_all_networks():
    with pytest.raises(LookupError) as refused:
        nets.build("cnn24", classes=10)
    assert "'cnn24'" in str(refused.value)
    assert all(name in str(refused.value) for name in nets.names())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"classes": 1}, "classes is 1, but must be 2 or more: count the classes"),
        (
            {"classes": 10, "feature_size": 0},
            "feature_size is 0, but must be 1 or more; leave out feature_size",
        ),
        ({"classes": 10, "image": (0, 32, 32)}, r"shape is \[0, 32, 32\], each number must be at least 1"),
        ({"classes": 10, "image": (3, 5, 5)}, "takes images from 16x16 on, not 5x5; convert the images"),
    ],
)
def test_impossible_options_of_a_network_are_refused_with_value_limit_and_advice(options, told):
    with pytest.raises(ValueError, match=told):
        nets.build("cnn23", **options)


def test_devices_in_one_process_train_with_the_same_bits_as_in_separate_processes():
    """Initialisers and dropout draw from the process's one generator."""
    samples = part(24, seed=1, shift=0.0)

    def device(seed):
        torch.set_num_threads(1)
        model = nets.build("mlp", image=(3, 8, 8), classes=3, seed=seed)
        model.features = nn.Sequential(model.features, nn.Dropout(0.5))
        hyper = LocalHyper(epochs=2, batch=4, lr=0.1)
        train(
            model,
            samples,
            lambda x, y: F.cross_entropy(model(x), y),
            hyper,
            torch.Generator().manual_seed(seed),
        )
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    alone = [device(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(device, [*range(4)] * 3))
    assert all(torch.equal(alone[i % 4], got) for i, got in enumerate(together))


def test_a_sample_of_a_wrong_kind_is_refused_with_the_networks_that_accept_it():
    taken = {(6, 128): "take cnn1d or mlp", (13,): "take mlp", (3, 32, 32): "take one of cnn23"}
    for name in nets.names():
        for shape, way_out in taken.items():
            if len(shape) in nets.RECIPES[name].ranks:
                assert weightless(name, image=shape)(torch.empty(2, *shape, device="meta")).shape == (
                    2,
                    CLASSES,
                )
            else:
                with pytest.raises(ValueError, match=rf"{name} takes .*, these samples are .*; {way_out}"):
                    weightless(name, image=shape)


def test_cnn1d_has_the_stated_number_of_parameters_and_refuses_short_series():
    assert sum(w.numel() for w in weightless("cnn1d", 4, image=(6, 100)).parameters()) == 14_084
    with pytest.raises(
        ValueError, match="takes series from 8 steps on, not 7; convert the series or take mlp"
    ):
        weightless("cnn1d", image=(6, 7))
