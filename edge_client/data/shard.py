"""The data of one client, loaded from its settings."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from protofleet.edge_client.data.cache import default_folder
from protofleet.edge_client.data.catalog import find
from protofleet.edge_client.data.domain import (
    Collection,
    Concatenated,
    Domain,
    Labels,
    Selection,
    concatenate,
    restrict_classes,
    select,
)
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.own import own_splits
from protofleet.edge_client.data.sampling import stratified, without
from protofleet.edge_client.data.scaling import LEVELS, PIXELS, UNSCALED, SampleKind, Scale, Values
from protofleet.edge_client.data.settings import MIN_TRAINING_SAMPLES, DataSettings
from protofleet.edge_client.data.shares import SPLITS, Share, Subsampler
from protofleet.edge_client.data.stable_random import StableRandom
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.wire.class_names import Names, normalized, problem_with

log = logging.getLogger("protofleet.device")

NO_INDICES: Final = np.empty(0, np.int64)
NO_PLUGINS: Final = PlugIns()


@dataclass(frozen=True)
class TensorSamples:
    # float32 [N, *shape of a sample]; pixels are -1 to 1. The equal channels of grey images share their memory.
    x: Tensor
    y: Tensor  # the labels, int64 [N]


@dataclass(frozen=True)
class Shard:
    domain: str
    classes: int
    train: TensorSamples
    validation: TensorSamples
    test: TensorSamples
    names: Names = ()  # names of the classes; empty if they are unknown
    scale: Scale = UNSCALED  # scale that was used to make x from the stored numbers
    pixels: bool = False  # whether the stored numbers are pixels

    @property
    def kind(self) -> SampleKind:
        if self.pixels:
            return SampleKind(True, self.scale)
        low, high = torch.aminmax(self.train.x)  # This function makes no copy of the data.
        return SampleKind(False, self.scale, max(-float(low), float(high)))

    def counts(self) -> Tensor:
        """Return the number of training samples of each class, int64 [classes]."""
        return torch.bincount(self.train.y, minlength=self.classes)


def load_shard(settings: DataSettings, plugins: PlugIns = NO_PLUGINS) -> Shard:
    """Load this client's share.

    The same settings give the same samples in the same order on every machine.
    """
    return Shards().load(settings, plugins)


class Shards:
    """The loader of the data of all clients in a process; data that several clients use are read only once."""

    def __init__(self, loaded: Shards | None = None) -> None:
        """Create a loader. If another loader is given as `loaded`, start with the data that it has read."""
        self._domains: dict[Hashable, Domain] = dict(loaded._domains) if loaded else {}
        self._drawn: dict[Hashable, list[Share]] = dict(loaded._drawn) if loaded else {}
        self._tests: dict[Hashable, TensorSamples] = dict(loaded._tests) if loaded else {}

    def load(self, settings: DataSettings, plugins: PlugIns = NO_PLUGINS) -> Shard:
        """Load the data of one client.

        `plugins` are the plug-ins that may run; they are needed if a user's function gives the data.
        """
        if settings.is_plugin:
            return _of_plugin(settings, plugins)
        settings.check_shape()
        domain = self.domain(settings)
        own = _seeds_of_client(domain, settings)
        train, test = self._training_and_test(domain, settings)
        train, validation = _split_off(settings.validation, train, StableRandom(*own, "validation"))
        _check_sizes(train, test, settings, domain)
        mixed = StableRandom(*own, "order").permutation(len(train.labels))
        shape, pixels = settings.input_shape, _are_pixels(domain, settings)
        scale = PIXELS if pixels else settings.scaling
        training = _to_tensors(select(train, mixed), shape, scale)
        held_out = _to_tensors(validation, shape, scale)
        tested = self._test_tensors(settings, test)
        return Shard(
            domain.name,
            len(domain.classes),
            training,
            held_out,
            tested,
            _comparable(domain.classes),
            scale,
            pixels,
        )

    def share_lengths(self, settings: DataSettings) -> list[tuple[int, int]]:
        """Return one pair for each client of the domain: the numbers of training and test samples in its share.

        The numbers are counted before samples are held out or left out. Only labels are read, not samples.
        """
        domain = self.domain(settings)
        train, test = _divided(domain, settings)
        return [(len(a), len(b)) for a, b in self._draw(domain, settings, train.labels, test.labels)]

    def load_common(self, settings: DataSettings) -> None:
        """Load only the data that the clients of the domain have in common."""
        if settings.is_plugin:
            return
        _, test = self._training_and_test(self.domain(settings), settings)
        self._test_tensors(settings, test)

    def domain(self, settings: DataSettings) -> Domain:
        """Return the whole domain, before it is divided."""
        key = (settings.source, settings.root, settings.domain, settings.classes)
        if key not in self._domains:
            self._domains[key] = _domain(settings)
        return self._domains[key]

    def _training_and_test(self, domain: Domain, settings: DataSettings) -> tuple[Collection, Collection]:
        """Return two collections of this client: the samples for training and validation, and the test samples."""
        own = _seeds_of_client(domain, settings)
        train, test = self._share(domain, settings, StableRandom(*own, "own test"))
        subsample = SPLITS[settings.split].subsample
        train = _fraction_of_domain(settings, train, StableRandom(*own, "fraction"))
        train = _at_most(settings.samples, subsample, train, StableRandom(*own, "samples"))
        # All clients of a domain use the same seed here, so they are tested on the same samples.
        drawn = StableRandom(*_seeds_of_domain(domain, settings), "test samples")
        return train, _at_most(settings.test_samples, subsample, test, drawn)

    def _share(
        self, domain: Domain, settings: DataSettings, own: StableRandom
    ) -> tuple[Collection, Collection]:
        """Return the training samples and the test samples of this client's share."""
        s = settings
        train, test = _divided(domain, s)
        own_indices, test_indices = self._draw(domain, s, train.labels, test.labels)[s.part]
        if s.own_test is not None:
            return _split_off(s.own_test, select(train, own_indices), own)
        return select(train, own_indices), select(test, test_indices)

    def _draw(self, domain: Domain, settings: DataSettings, train: Labels, test: Labels) -> list[Share]:
        """Return the shares of all clients of this domain."""
        s = settings
        key = (id(domain), s.seed, s.split, s.parts, s.beta, s.own_test is None)
        if key not in self._drawn:
            rng = StableRandom(s.seed, s.source, domain.name, "shares")
            self._drawn[key] = SPLITS[s.split].partition(train, test, s.parts, s.beta, rng)
        return self._drawn[key]

    def _test_tensors(self, settings: DataSettings, test: Collection) -> TensorSamples:
        shape, scale = settings.input_shape, settings.scaling
        key = (shape, scale, _identity(test))
        if key not in self._tests:
            self._tests[key] = _to_tensors(test, shape, scale)
        return self._tests[key]


def _of_plugin(settings: DataSettings, plugins: PlugIns) -> Shard:
    found = own_splits(settings, plugins)
    train, validation, test = (TensorSamples(*pair) for pair in (found.train, found.validation, found.test))
    names = _comparable(found.names)
    return Shard(found.domain, found.classes, train, validation, test, names, found.scale, found.pixels)


def _are_pixels(domain: Domain, settings: DataSettings) -> bool:
    """Return whether the values of the domain are pixels, which have the type uint8.

    The name of the source does not show this, because the same source may have pixels in one domain and other
    numbers in another domain.
    """
    kinds = {part.samples(NO_INDICES, settings.input_shape).dtype for part in (domain.train, domain.test)}
    if len(kinds) > 1:
        raise DataError(
            f"{domain.name} of {settings.source} has pixels (uint8) only for training or only for the test; store "
            "training samples and test samples with the same type"
        )
    if kinds != {np.dtype(np.uint8)}:
        return False
    if settings.scale is not None:
        raise DataError(
            f"data.scale is set, and {domain.name} of {settings.source} has pixels (uint8), which are always scaled "
            "to -1..1; leave data.scale out"
        )
    return True


def _divided(domain: Domain, settings: DataSettings) -> tuple[Collection, Collection]:
    """Return all training samples and all test samples of the domain, before they are divided among clients.

    If each client holds out its own test samples, all samples are returned as training samples.
    """
    s, train, test = settings, domain.train, domain.test
    if s.own_test is not None:
        train, test = Concatenated([train, test]), select(test, NO_INDICES)
    if not len(train.labels) or not (len(test.labels) or s.own_test):
        raise DataError(
            f"{domain.name} of {s.source} has {len(train.labels)} training and {len(test.labels)} test samples "
            f"of its {len(domain.classes)} classes; both numbers must be above 0: add samples to {domain.name} in "
            f"{s.root or 'the data'}, or set data.own_test to divide the samples into training and test"
        )
    return train, test


# A parent process fills this loader before it forks, so that its children share the memory of the data. In other
# processes the loader is empty.
LOADED_BEFORE_FORK: Final = Shards()


def _seeds_of_domain(domain: Domain, settings: DataSettings) -> tuple[int | str, ...]:
    return (settings.seed, settings.source, domain.name)


def _seeds_of_client(domain: Domain, settings: DataSettings) -> tuple[int | str, ...]:
    return (*_seeds_of_domain(domain, settings), settings.parts, settings.part)


def _identity(samples: Collection) -> Hashable:
    """Return a key of a selection. Two selections of the same samples from one collection have the same key."""
    if isinstance(samples, Selection):
        return (_identity(samples.collection), samples.indices.tobytes(), samples.labels.tobytes())
    return id(samples)


def class_names(settings: DataSettings) -> Names:
    """Return the names of the classes, without reading samples; empty if the names are unknown."""
    if settings.is_plugin:
        return ()  # the names are known only after a call of the user's function
    domain = settings.domain or settings.source
    return _comparable(
        configured_class_names(settings) or find(settings.source).class_names(_folder(settings), domain)
    )


def missing_folder(settings: DataSettings) -> Path | None:
    """Return the folder of the data if the folder is needed but missing; otherwise return None."""
    folder = _folder(settings)
    if settings.is_plugin:
        return None
    return None if folder.is_dir() or not find(settings.source).needs_folder else folder


def configured_class_names(settings: DataSettings) -> Names:
    """Return the class names from the settings, or the source's usual classes; do not read the data."""
    return () if settings.is_plugin else settings.classes or find(settings.source).default_classes


def _comparable(classes: tuple[str, ...]) -> Names:
    """Return the class names in a form that devices can compare; empty if there is no such form."""
    names = normalized(classes)
    if problem := problem_with(names):
        log.warning(
            "%s; this device does not send its class names, so nobody compares them with the names of other devices",
            problem,
        )
        return ()
    return names


def _folder(settings: DataSettings) -> Path:
    return Path(settings.root).expanduser() if settings.root else default_folder() / settings.source


def _domain(settings: DataSettings) -> Domain:
    """Read the domain that the settings name, or all domains of the source as one domain."""
    source = find(settings.source)
    folder = _folder(settings)
    whole = settings.domain in ("", settings.source)
    names = (source.domains or (settings.source,)) if whole else (settings.domain,)
    return concatenate(
        settings.source,
        [restrict_classes(source.read(folder, name), configured_class_names(settings)) for name in names],
    )


def _fraction_of_domain(settings: DataSettings, share: Collection, rng: StableRandom) -> Collection:
    """Reduce the share to `fraction` times the number of samples of the domain.

    The number of samples of the domain is estimated as `parts` times the number of samples of the share. The mix of
    classes stays the same.
    """
    if settings.fraction is None:
        return share
    wanted = round(settings.fraction * settings.parts * len(share.labels))
    return _at_most(wanted, stratified, share, rng)


def _at_most(most: int | None, subsample: Subsampler, samples: Collection, rng: StableRandom) -> Collection:
    if most is None or most >= len(samples.labels):
        return samples
    return select(samples, subsample(samples.labels, most, rng))


def _split_off(fraction: float, samples: Collection, rng: StableRandom) -> tuple[Collection, Collection]:
    """Hold out a fraction of the samples, and return the remaining samples and the held-out samples."""
    held_out = stratified(samples.labels, round(fraction * len(samples.labels)), rng)
    return select(samples, without(len(samples.labels), held_out)), select(samples, held_out)


def _check_sizes(train: Collection, test: Collection, settings: DataSettings, domain: Domain) -> None:
    if len(train.labels) < MIN_TRAINING_SAMPLES:
        raise DataError(
            f"the division of {domain.name} gives client {settings.part} of {settings.parts} only "
            f"{len(train.labels)} training samples, but at least {MIN_TRAINING_SAMPLES} are needed; use fewer parts, "
            "a smaller validation fraction or more samples"
        )
    if not len(test.labels):
        raise DataError(
            f"the division of {domain.name} gives client {settings.part} of {settings.parts} no test samples; "
            "use fewer parts or a larger own_test"
        )


def _to_tensors(samples: Collection, shape: InputShape, scale: Scale) -> TensorSamples:
    labels = torch.from_numpy(samples.labels.astype(np.int64))
    return TensorSamples(to_tensor(samples.samples(np.arange(len(labels)), shape), shape, scale), labels)


def to_tensor(values: Values, shape: InputShape, scale: Scale) -> Tensor:
    """Convert stored values to the input of a network, float32 [N, *shape]."""
    if values.dtype != np.uint8:
        return torch.from_numpy(scale.applied(values))
    if shape.rank == 3 and shape.channels == 3 and all(bool((one == one[:1]).all()) for one in values):
        values = values[:, :1]  # If all images are grey, only one channel is kept in memory.
    x = np.empty(values.shape, np.float32)
    # The samples are converted one by one. Converting all samples at once would take eight times the memory for a
    # moment.
    for one, found in zip(x, values, strict=True):
        one[:] = LEVELS[found]
    return torch.from_numpy(x).expand(-1, *shape.axes)
