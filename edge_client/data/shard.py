"""One client's data, from its settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from protofleet.edge_client.data.cache import default_folder
from protofleet.edge_client.data.catalog import find
from protofleet.edge_client.data.domain import Collection, Domain, Pooled, narrowed, pooled, take
from protofleet.edge_client.data.draws import Draws
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.sampling import stratified, without
from protofleet.edge_client.data.settings import LEAST, DataSettings
from protofleet.edge_client.data.shares import SPLITS, Thin
from protofleet.protocol.wire.class_names import Names, normalized, problem_with

log = logging.getLogger("protofleet.device")

# One scale for all domains, 0..255 to -1..1: each domain's own mean and deviation would take away the very shift
# that federated methods are compared on.
SCALE: Final = (2 * np.arange(256) - 255).astype(np.float32) / np.float32(255)

NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class TensorSamples:
    x: Tensor  # float32 [N, channels, size, size], -1 to 1
    y: Tensor  # int64 [N]


@dataclass(frozen=True)
class Shard:
    domain: str
    classes: int
    train: TensorSamples
    validation: TensorSamples
    test: TensorSamples
    names: Names = ()  # of its classes; none: nobody can tell

    def counts(self) -> Tensor:
        """int64 [classes]: training samples of each class."""
        return torch.bincount(self.train.y, minlength=self.classes)


def load_shard(settings: DataSettings) -> Shard:
    """This client's share. The same settings give the same samples in the same order on every machine."""
    domain = _domain(settings)
    where = (settings.seed, settings.source, domain.name)
    own = (*where, settings.parts, settings.part)
    train, test = _share(domain, settings, Draws(*where, "shares"), Draws(*own, "own test"))
    thin = SPLITS[settings.split].thin
    train = _so_much(settings, train, Draws(*own, "fraction"))
    train = _at_most(settings.samples, thin, train, Draws(*own, "samples"))
    # Without a test of their own, clients that share a domain report on the same samples.
    test = _at_most(settings.test_samples, thin, test, Draws(*where, "test samples"))
    train, validation = _held_out(settings.validation, train, Draws(*own, "validation"))
    _check(train, test, settings, domain)
    mixed = Draws(*own, "order").order(len(train.labels))
    some = (_part(part, settings.size, settings.channels) for part in (take(train, mixed), validation, test))
    learnt, held, tested = some
    return Shard(domain.name, len(domain.classes), learnt, held, tested, _said(domain.classes))


def class_names(settings: DataSettings) -> Names:
    """What its classes are called; no picture is read for it. None where nobody can tell."""
    domain = settings.domain or settings.source
    return _said(stated(settings) or find(settings.source).called(_folder(settings), domain))


def stated(settings: DataSettings) -> Names:
    """What its classes are called as far as the settings say it, wherever the data are."""
    return settings.classes or find(settings.source).classes


def _said(classes: tuple[str, ...]) -> Names:
    """As others are told them, if they can be."""
    names = normalized(classes)
    if problem := problem_with(names):
        log.warning("%s; so nobody is told what the classes are called, and nobody can compare", problem)
        return ()
    return names


def _folder(settings: DataSettings) -> Path:
    return Path(settings.root).expanduser() if settings.root else default_folder() / settings.source


def _domain(settings: DataSettings) -> Domain:
    """The one that the settings name, or all of the source as one."""
    source = find(settings.source)
    folder = _folder(settings)
    whole = settings.domain in ("", settings.source)
    names = (source.domains or (settings.source,)) if whole else (settings.domain,)
    return pooled(settings.source, [narrowed(source.read(folder, name), stated(settings)) for name in names])


def _share(domain: Domain, settings: DataSettings, draws: Draws, own: Draws) -> tuple[Collection, Collection]:
    """What this client may learn from, and what it is tested on."""
    s, train, test, deal = settings, domain.train, domain.test, SPLITS[settings.split].deal
    if s.own_test is not None:
        train, test = Pooled([train, test]), take(test, NONE)
    if not len(train.labels) or not (len(test.labels) or s.own_test):
        raise DataError(
            f"{domain.name} of {s.source} has {len(train.labels)} training and {len(test.labels)} test samples "
            f"of its {len(domain.classes)} classes; it takes some of both, or data.own_test"
        )
    mine, tested = deal(train.labels, test.labels, s.parts, s.beta, draws)[s.part]
    if s.own_test is not None:
        return _held_out(s.own_test, take(train, mine), own)
    return take(train, mine), take(test, tested)


def _so_much(settings: DataSettings, share: Collection, draws: Draws) -> Collection:
    """`fraction` is of the domain, of which the share is one part of `parts` on the average. The mix stays."""
    if settings.fraction is None:
        return share
    wanted = round(settings.fraction * settings.parts * len(share.labels))
    return _at_most(wanted, stratified, share, draws)


def _at_most(most: int | None, thin: Thin, some: Collection, draws: Draws) -> Collection:
    return some if most is None or most >= len(some.labels) else take(some, thin(some.labels, most, draws))


def _held_out(fraction: float, some: Collection, draws: Draws) -> tuple[Collection, Collection]:
    """What is left, and what is held out."""
    held = stratified(some.labels, round(fraction * len(some.labels)), draws)
    return take(some, without(len(some.labels), held)), take(some, held)


def _check(train: Collection, test: Collection, settings: DataSettings, domain: Domain) -> None:
    if len(train.labels) < LEAST:
        raise DataError(
            f"{domain.name} leaves client {settings.part} of {settings.parts} {len(train.labels)} training "
            f"samples, it takes {LEAST}; take fewer parts, a smaller validation or more samples"
        )
    if not len(test.labels):
        raise DataError(
            f"{domain.name} leaves client {settings.part} of {settings.parts} no test samples; "
            "take fewer parts or a larger own_test"
        )


def _part(some: Collection, size: int, channels: int) -> TensorSamples:
    pixels = some.pixels(np.arange(len(some.labels)), size)
    if channels == 1:
        pixels = grey(pixels)
    pixels = pixels.transpose(0, 3, 1, 2)
    x = np.empty(pixels.shape, np.float32)
    for image, found in zip(
        x, pixels, strict=True
    ):  # all at once would take eight times the memory for a moment
        image[:] = SCALE[found]
    return TensorSamples(torch.from_numpy(x), torch.from_numpy(some.labels.astype(np.int64)))


def grey(pixels: Pixels) -> Pixels:
    """[N, h, w, 3] -> [N, h, w, 1] by ITU-R BT.601's luma, in whole numbers; a grey image keeps its shades."""
    red, green, blue = (pixels[..., i].astype(np.uint32) for i in range(3))
    luma = (299 * red + 587 * green + 114 * blue + 500) // 1000
    found: Pixels = luma.astype(np.uint8)[..., None]
    return found
