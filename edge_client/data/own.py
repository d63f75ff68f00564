"""Data from a user's own function: `DATA = load` in a file, and `load(request)` returns `Data(...)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from protofleet.edge_client.data.sampling import stratified, without
from protofleet.edge_client.data.scaling import PIXELS, UNSCALED, Scale
from protofleet.edge_client.data.settings import MIN_TRAINING_SAMPLES, DataSettings
from protofleet.edge_client.data.stable_random import StableRandom
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.errors import PlugInError, file_of, guarded
from protofleet.methods.plugins.found import find

Array: TypeAlias = "Tensor | np.ndarray[Any, Any]"
Pairs: TypeAlias = tuple[Array, Array]  # N samples [N, ...] and their labels [N], which are numbered from 0


@dataclass(frozen=True)
class DataRequest:
    """The request for one share of a domain.

    The domain is divided into `parts` shares, and `part` is the index of the requested share. Equal requests must
    give equal data.
    """

    root: Path  # the setting data.root
    domain: str
    part: int
    parts: int
    seed: int
    split: str  # `split` and `beta` are the settings data.split and data.beta, which say how the shares are made.
    beta: float
    shape: tuple[int, ...]  # shape of a sample


@dataclass(frozen=True)
class Data:
    """The data that a user's function returns.

    Samples of type uint8 are pixels, which are scaled to -1..1. Samples of other types are used unchanged.
    """

    train: Pairs
    test: Pairs
    classes: int | Sequence[str]  # the number of classes, or their names in the order of their labels
    # If None, some training samples are held out for validation; the setting data.validation is their fraction.
    validation: Pairs | None = None
    domain: str = ""  # name of the domain, which is used if the settings name no domain


@dataclass(frozen=True)
class OwnSplits:
    """The data after all checks, as tensors that every method accepts."""

    domain: str
    names: tuple[str, ...]
    classes: int
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    pixels: bool  # whether the function returned pixels

    @property
    def scale(self) -> Scale:
        """Return the scale that was used to make these tensors."""
        return PIXELS if self.pixels else UNSCALED


def own_splits(settings: DataSettings, plugins: PlugIns) -> OwnSplits:
    """Call the user's function and check its data.

    Raise PlugInError if the data are wrong or the function raises an exception. The error names the file, and the
    line that raised the exception.
    """
    number = plugins.hash_of("data", settings.source, settings.file, settings.is_ours)
    load = loader(settings.source, number)
    where = file_of(load) or settings.file or settings.source
    request = DataRequest(
        Path(settings.root).expanduser(), settings.domain or settings.source, settings.part, settings.parts,
        settings.seed, settings.split, settings.beta, settings.input_shape.axes,
    )  # fmt: skip
    found = guarded(lambda: load(request), where, files_of(load, settings.file))
    if not isinstance(found, Data):
        raise PlugInError(
            f"{where}: DATA returns {type(found).__name__}, but it must return Data(train, test, classes)"
        )
    return Checked(where, found, settings).splits()


def loader(name: str, sha256: str) -> Callable[[DataRequest], object]:
    """Return the function DATA of a plug-in that this process has loaded."""
    return find("data", name, sha256, Callable)  # type: ignore[no-any-return]


def files_of(load: Callable[..., object], path: str) -> set[str]:
    code = getattr(load, "__code__", None)
    return {path, code.co_filename if code else ""} - {""}


@dataclass(frozen=True)
class Checked:
    where: str
    found: Data
    settings: DataSettings

    def splits(self) -> OwnSplits:
        found, settings = self.found, self.settings
        names = () if isinstance(found.classes, int) else tuple(map(str, found.classes))
        classes = found.classes if isinstance(found.classes, int) else len(names)
        if classes < 2:
            raise PlugInError(
                f"{self.where}: Data.classes is {found.classes!r}; give a number of at least 2, or the classes' names"
            )
        train, test = self._pair("train", found.train, classes), self._pair("test", found.test, classes)
        if found.validation is not None:
            validation = self._pair("validation", found.validation, classes)
        else:
            train, validation = held_out(train, settings)
        if len(train[1]) < MIN_TRAINING_SAMPLES or not len(test[1]):
            raise PlugInError(
                f"{self.where}: Data has {len(train[1])} training and {len(test[1])} test samples for part "
                f"{settings.part} of {settings.parts}; at least {MIN_TRAINING_SAMPLES} training samples and 1 test "
                "sample are needed"
            )
        domain = settings.domain or found.domain or settings.source
        return OwnSplits(domain, names, classes, train, validation, test, self._are_pixels())

    def _are_pixels(self) -> bool:
        """Return whether the data are pixels; call this only when the pairs are known to be valid."""
        pairs = {"train": self.found.train, "test": self.found.test, "validation": self.found.validation}
        pixels = {
            split: torch.as_tensor(pair[0]).dtype == torch.uint8 for split, pair in pairs.items() if pair
        }
        if len(set(pixels.values())) > 1:
            are = ", ".join(
                f"{split}: {'uint8' if told else 'other numbers'}" for split, told in pixels.items()
            )
            raise PlugInError(
                f"{self.where}: some samples of Data are pixels and some are not ({are}); give all samples one type"
            )
        return pixels["train"]

    def _pair(self, split: str, pair: Pairs, classes: int) -> tuple[Tensor, Tensor]:
        what = f"{self.where}: Data.{split}"
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise PlugInError(f"{what} is {type(pair).__name__}; it must be a pair of samples and labels")
        try:
            x, y = (torch.as_tensor(one) for one in pair)
        except (TypeError, ValueError, RuntimeError) as error:
            raise PlugInError(f"{what} must be a pair of tensors or arrays: {error}") from None
        wanted, shape = self.settings.input_shape.axes, tuple(x.shape[1:])
        if y.ndim != 1 or len(x) != len(y) or y.is_floating_point():
            raise PlugInError(
                f"{what} has samples {list(x.shape)} and labels {list(y.shape)} of {y.dtype}; the labels must be one "
                "integer for each sample"
            )
        if shape != wanted:
            raise PlugInError(
                f"{what} has samples of shape {list(shape)}, but the settings want {list(wanted)}; change the data "
                "or the settings"
            )
        if len(y) and not (int(y.min()) >= 0 and int(y.max()) < classes):
            raise PlugInError(
                f"{what} has labels from {int(y.min())} to {int(y.max())}; for {classes} classes, the labels must be "
                f"from 0 to {classes - 1}"
            )
        x = scaled(x)
        if not bool(x.isfinite().all()):
            raise PlugInError(f"{what} has samples with numbers that are not finite; leave out these samples")
        return x.contiguous(), y.to(torch.int64)


def scaled(x: Tensor) -> Tensor:
    return (2 * x.float() - 255) / 255 if x.dtype == torch.uint8 else x.to(torch.float32)


def held_out(
    train: tuple[Tensor, Tensor], settings: DataSettings
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Split training samples into samples that stay for training and samples for validation.

    The fraction `data.validation` of each class is for validation. The split is the same on every machine.
    """
    x, y = train
    dice = StableRandom(
        settings.seed, settings.source, settings.domain, settings.parts, settings.part, "validation"
    )
    chosen = stratified(y.numpy(), round(settings.validation * len(y)), dice)
    kept = torch.from_numpy(without(len(y), chosen))
    out = torch.from_numpy(chosen)
    return (x[kept], y[kept]), (x[out], y[out])
