"""Tests that the computed costs agree with the papers' claims about communication, and that a table has them."""

import pytest

from protofleet.cli.costs import SETTINGS, lines, table
from protofleet.methods.contract.cost import parameters
from protofleet.methods.nets.catalog import build
from protofleet.methods.nets.mlp import amplifier, fedpall_classifier


def setting(words):
    return next(s for s in SETTINGS if s.title.startswith(words))


def cost(words, method):
    line = next(line for line in lines(setting(words)) if line.row.method == method)
    return line.up, line.down


@pytest.mark.parametrize(
    ("words", "fedavg", "fedhp"),
    [
        ("FedHP, MNIST", 582_026, 10_240),
        ("FedHP, CIFAR", 725_952, 16_000),
        ("FedHP, the same with FedNH", 797_952, 16_000),
    ],
)
def test_fedhp_has_the_communication_that_its_paper_states(words, fedavg, fedhp):
    """Section 3: parameters shared by a client in a round, both ways."""
    assert cost(words, "fedavg")[0] == cost(words, "fedavg")[1] == {"weights": fedavg}
    assert cost(words, "fedhp") == ({"prototypes": fedhp}, {"prototypes": fedhp})


def test_fedpall_has_the_network_sizes_and_the_download_of_its_paper():
    """Table 4: 23.5M, 1.32M and 1.32M; 10.61 % of FedAvg's 24.8M without the prototypes, 10.69 % with them."""
    G = parameters(build("resnet50", classes=10).features)
    H, A = parameters(fedpall_classifier(2048, 10)), parameters(amplifier(2048, 5))
    assert (G, H, A) == (23_508_032, 1_318_922, 1_315_328)
    (up, _), (_, down) = cost("FedPall, Digits", "fedavg"), cost("FedPall, Digits", "fedpall")
    assert up["weights"] == G + H == 24_826_954
    assert down["classifier"] + down["amplifier"] == H + A
    assert round(100 * (H + A) / (G + H), 2) == 10.61
    assert round(100 * (H + A + down["prototypes"]) / (G + H), 2) == 10.69


def test_fedpall_uploads_as_much_as_fedavg_from_12122_samples_on():
    """The paper compares "12,122 features" with 24.8M parameters: it is the break-even, not a saving."""
    up, _ = cost("FedPall, where", "fedpall")
    whole = cost("FedPall, where", "fedavg")[0]["weights"]
    assert whole // 2048 == 12_122 and up["features"] == 12_122 * 2048
    assert round(100 * up["features"] / whole, 3) == 99.996


def test_the_anchors_of_fedlsa_are_small_compared_with_the_model():
    up, down = cost("FedLSA", "fedlsa")
    assert up == {"weights": 62_006} and sum(down.values()) == 62_846
    assert round(100 * down["anchors"] / down["weights"], 2) == 1.35


@pytest.mark.parametrize(
    ("words", "floats"), [("FedSA, CIFAR-10", 5_120), ("FedSA, CIFAR-100", 51_200), ("FedSA, Tiny", 102_400)]
)
def test_the_anchors_and_prototypes_of_fedsa_have_the_sizes_of_its_paper(words, floats):
    title = next(
        s.title for s in SETTINGS if s.title.split(":")[0] == words or s.title.startswith(words + "-")
    )
    up, down = cost(title, "fedsa")
    assert up["prototypes"] == down["anchors"] == down["prototypes"] == floats


def test_fedsa_uploads_a_twentieth_of_the_numbers_of_fedavg():
    assert cost("FedSA, CIFAR-100", "fedavg")[0] == {"weights": 924_708}
    assert round(51_200 / 924_708, 3) == 0.055


def test_the_prototypes_of_fedplcc_are_a_third_of_a_percent_of_the_model():
    (up, _), (whole, _) = cost("FedPLCC", "fedplcc"), cost("FedPLCC", "fedavg")
    assert up["prototypes"] + up["counts"] == 30 * 513
    assert round(100 * 30 * 513 / whole["weights"], 2) == 0.31


def test_the_table_has_each_setting_and_share():
    text = table()
    assert all(s.title in text for s in SETTINGS)
    row = next(line for line in text.splitlines() if line.startswith("  fedhp") and "cnn_mnist" in line)
    assert row.split()[2:6] == ["10,240", "1.76%", "10,240", "1.76%"]
