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
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.sampling import stratified, without
from protofleet.edge_client.data.settings import MIN_TRAINING_SAMPLES, DataSettings
from protofleet.edge_client.data.shares import SPLITS, Subsampler
from protofleet.edge_client.data.stable_random import StableRandom
from protofleet.protocol.wire.class_names import Names, normalized, problem_with

log = logging.getLogger("protofleet.device")

# One scale for all domains, 0..255 to -1..1: each domain's own mean and deviation would take away the very shift
# that federated methods are compared on.
SCALE: Final = (2 * np.arange(256) - 255).astype(np.float32) / np.float32(255)

NO_INDICES: Final = np.empty(0, np.int64)


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
    train, test = _share(domain, settings, StableRandom(*where, "shares"), StableRandom(*own, "own test"))
    subsample = SPLITS[settings.split].subsample
    train = _fraction_of_domain(settings, train, StableRandom(*own, "fraction"))
    train = _at_most(settings.samples, subsample, train, StableRandom(*own, "samples"))
    # Without a test of their own, clients that share a domain report on the same samples.
    test = _at_most(settings.test_samples, subsample, test, StableRandom(*where, "test samples"))
    train, validation = _split_off(settings.validation, train, StableRandom(*own, "validation"))
    _check_sizes(train, test, settings, domain)
    mixed = StableRandom(*own, "order").permutation(len(train.labels))
    some = (
        _to_tensors(part, settings.size, settings.channels) for part in (take(train, mixed), validation, test)
    )
    learnt, held, tested = some
    return Shard(domain.name, len(domain.classes), learnt, held, tested, _comparable(domain.classes))


def class_names(settings: DataSettings) -> Names:
    """What its classes are called; no picture is read for it. None where nobody can tell."""
    domain = settings.domain or settings.source
    return _comparable(
        configured_class_names(settings) or find(settings.source).class_names(_folder(settings), domain)
    )


def configured_class_names(settings: DataSettings) -> Names:
    """What its classes are called as far as the settings say it, wherever the data are."""
    return settings.classes or find(settings.source).default_classes


def _comparable(classes: tuple[str, ...]) -> Names:
    """In the form in which devices compare them, where they have one."""
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
    return pooled(
        settings.source,
        [narrowed(source.read(folder, name), configured_class_names(settings)) for name in names],
    )


def _share(
    domain: Domain, settings: DataSettings, rng: StableRandom, own: StableRandom
) -> tuple[Collection, Collection]:
    """What this client may learn from, and what it is tested on."""
    s, train, test, partition = settings, domain.train, domain.test, SPLITS[settings.split].partition
    if s.own_test is not None:
        train, test = Pooled([train, test]), take(test, NO_INDICES)
    if not len(train.labels) or not (len(test.labels) or s.own_test):
        raise DataError(
            f"{domain.name} of {s.source} has {len(train.labels)} training and {len(test.labels)} test samples "
            f"of its {len(domain.classes)} classes; it takes some of both, or data.own_test"
        )
    mine, tested = partition(train.labels, test.labels, s.parts, s.beta, rng)[s.part]
    if s.own_test is not None:
        return _split_off(s.own_test, take(train, mine), own)
    return take(train, mine), take(test, tested)


def _fraction_of_domain(settings: DataSettings, share: Collection, rng: StableRandom) -> Collection:
    """`fraction` is of the domain, of which the share is one part of `parts` on the average. The mix stays."""
    if settings.fraction is None:
        return share
    wanted = round(settings.fraction * settings.parts * len(share.labels))
    return _at_most(wanted, stratified, share, rng)


def _at_most(most: int | None, subsample: Subsampler, some: Collection, rng: StableRandom) -> Collection:
    return some if most is None or most >= len(some.labels) else take(some, subsample(some.labels, most, rng))


def _split_off(fraction: float, some: Collection, rng: StableRandom) -> tuple[Collection, Collection]:
    """What is left, and what is held out."""
    held = stratified(some.labels, round(fraction * len(some.labels)), rng)
    return take(some, without(len(some.labels), held)), take(some, held)


def _check_sizes(train: Collection, test: Collection, settings: DataSettings, domain: Domain) -> None:
    if len(train.labels) < MIN_TRAINING_SAMPLES:
        raise DataError(
            f"{domain.name} leaves client {settings.part} of {settings.parts} {len(train.labels)} training "
            f"samples, it takes {MIN_TRAINING_SAMPLES}; take fewer parts, a smaller validation or more samples"
        )
    if not len(test.labels):
        raise DataError(
            f"{domain.name} leaves client {settings.part} of {settings.parts} no test samples; "
            "take fewer parts or a larger own_test"
        )


def _to_tensors(some: Collection, size: int, channels: int) -> TensorSamples:
    pixels = some.pixels(np.arange(len(some.labels)), size)
    if channels == 1:
        pixels = grey(pixels)
    pixels = pixels.transpose(0, 3, 1, 2)
    x = np.empty(pixels.shape, np.float32)
    # All at once would take eight times the memory for a moment.
    for image, found in zip(x, pixels, strict=True):
        image[:] = SCALE[found]
    return TensorSamples(torch.from_numpy(x), torch.from_numpy(some.labels.astype(np.int64)))


def grey(pixels: Pixels) -> Pixels:
    """[N, h, w, 3] -> [N, h, w, 1] by ITU-R BT.601's luma, in whole numbers; a grey image keeps its shades."""
    red, green, blue = (pixels[..., i].astype(np.uint32) for i in range(3))
    luma = (299 * red + 587 * green + 114 * blue + 500) // 1000
    found: Pixels = luma.astype(np.uint8)[..., None]
    return found
