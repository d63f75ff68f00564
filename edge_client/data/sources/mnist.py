"""MNIST from its four idx files: 60,000 digits for training and 10,000 for the test, of 28x28 pixels."""

from __future__ import annotations

from pathlib import Path

from protofleet.edge_client.data.domain import Domain
from protofleet.edge_client.data.sources.idx import read_pair
from protofleet.edge_client.data.sources.source import DIGITS, DataSource, digit_names


def read(folder: Path, domain: str) -> Domain:
    # The package torchvision stores the files in one of the last two folders.
    places = [folder, folder / "MNIST" / "raw", folder / "raw"]
    return Domain(domain, DIGITS, read_pair(places, "train"), read_pair(places, "test"))


SOURCE = DataSource(read, ("mnist",), class_names=digit_names)
