"""Tests of the program that measures only the loss of coding, with two devices and a tiny network."""

import pytest
import torch

from benchmarks.programs.coding_loss import coded_once, loss_of
from protofleet.lab.local.experiment import Experiment
from protofleet.protocol.settings.reader import decode

TABLE = {
    "name": "two", "rounds": 1, "method": {"name": "fedproto", "epochs": 1, "batch": 16},
    "data": {"source": "digits", "samples": 60, "size": 8}, "devices": {"clients": {"optdigits": 2}},
    "network": {"name": "mlp", "embedding_size": 8},
}  # fmt: skip


def test_both_accuracies_are_of_the_same_devices_and_only_the_prototypes_are_rounded():
    experiment = decode(Experiment, TABLE)
    exact, coded = loss_of(experiment, "small")
    assert 0 <= exact <= 100 and abs(exact - coded) < 25
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    sent = {"prototypes": rows, "labels": torch.tensor([0, 1, 2])}
    found = coded_once(sent, experiment, "small")
    assert torch.equal(found["labels"], sent["labels"]) and not torch.equal(found["prototypes"], rows)
    torch.testing.assert_close(found["prototypes"], rows, rtol=0, atol=0.5)


def test_a_codec_that_rounds_nothing_is_refused_in_one_line():
    with pytest.raises(
        SystemExit, match="the codec off rounds nothing; name a codec that rounds, such as small"
    ):
        coded_once({}, decode(Experiment, TABLE), "off")
