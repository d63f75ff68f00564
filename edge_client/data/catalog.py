"""The list of all data sources by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protofleet.edge_client.data.sources import (
    arrays,
    basic_motions,
    cifar,
    digits,
    domainnet,
    fashion,
    folders,
    mnist,
    svhn,
    tables,
    tiny_imagenet,
    usps,
)
from protofleet.edge_client.data.sources.source import DataSource
from protofleet.protocol.settings.suggest import there_are

SOURCES: Final[Mapping[str, DataSource]] = {
    "digits": digits.SOURCE,
    "fashion": fashion.SOURCE,
    "mnist": mnist.SOURCE,
    "usps": usps.SOURCE,
    "svhn": svhn.SOURCE,
    "cifar10": cifar.CIFAR10,
    "cifar100": cifar.CIFAR100,
    "office_caltech": folders.OFFICE_CALTECH,
    "pacs": folders.PACS,
    "domainnet": domainnet.SOURCE,
    "tiny_imagenet": tiny_imagenet.SOURCE,
    "folder": folders.FOLDER,
    "basic_motions": basic_motions.SOURCE,
    "breast_cancer": tables.BREAST_CANCER,
    "iris": tables.IRIS,
    "wine": tables.WINE,
    "arrays": arrays.SOURCE,
    "table": tables.TABLE,
}


def names() -> list[str]:
    return list(SOURCES)


def find(name: str) -> DataSource:
    if name not in SOURCES:
        raise ValueError(f"source is {name!r}; {there_are(name, SOURCES)}")
    return SOURCES[name]


def domains(source: str) -> tuple[str, ...]:
    """Return the names of a source's domains; empty if the files in the data's folder determine the domains.

    If a source has only one domain, the domain has the name of the source.
    """
    return find(source).domains
