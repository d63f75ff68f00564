"""Convert the inputs of a model: paths of pictures, or arrays of numbers before scaling.

Any other input raises a SettingsError with a message of one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofleet.edge_client.data.images.image_files import named_pictures
from protofleet.lab.api.errors import public_errors
from protofleet.methods.served.scaling import Input
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.printable import printable

Array: TypeAlias = "Tensor | NDArray[Any]"
Inputs: TypeAlias = "Array | str | Path | Sequence[str | Path] | Sequence[Array]"

NUMBERS: Final = (
    "biuf"  # NumPy's letters for types of numbers: bool, signed and unsigned integers, and floats.
)
TEXTS: Final = "OU"


def samples_of(inputs: Inputs, takes: Input) -> Tensor:
    """Return the samples as one tensor [N, *shape] of uint8 or float32."""
    listed = _listed(inputs)
    if listed is None:
        numbers = _numbers(inputs, takes)
        if not numbers.ndim:
            raise SettingsError(_no_sample(inputs, takes))
        return _finite(_of_shape(numbers, takes))
    if not listed:
        return torch.empty(0, *takes.shape)
    if all(isinstance(one, str | PathLike) for one in listed):
        return _pictures([Path(one) for one in listed], takes)
    return _finite(_of_shape(_stacked(listed, takes), takes))


def _listed(inputs: object) -> list[Any] | None:
    """Return the inputs as a list. Return None for a single array or a value that is not a sequence."""
    if isinstance(inputs, str | PathLike):
        return [inputs]
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in TEXTS and inputs.ndim == 1:
        return list(inputs)
    if isinstance(inputs, Tensor | bytes | Mapping | Set) or hasattr(inputs, "__array__"):
        return None
    return list(inputs) if isinstance(inputs, Iterable) else None


def _pictures(paths: Sequence[Path], takes: Input) -> Tensor:
    """Read pictures with the size and the channels of the model's input. Devices read pictures in the same way."""
    if takes.kind != "image":
        raise SettingsError(
            f"the input of the model is a {takes.kind} and not a picture; give an array in place of paths"
        )
    with public_errors():
        return torch.from_numpy(named_pictures(paths, InputShape(takes.shape)).copy())


def _stacked(listed: Sequence[Any], takes: Input) -> Tensor:
    """Stack the arrays of several samples, or the numbers of one sample."""
    arrays = [_numbers(one, takes) for one in listed]
    for number, one in enumerate(arrays):
        if one.shape != arrays[0].shape:
            found = (
                f"sample {number} has the shape {list(one.shape)}, but sample 0 has {list(arrays[0].shape)}"
            )
            raise SettingsError(f"{found}; every sample must have the shape {list(takes.shape)}")
    return torch.stack(arrays)


def _numbers(one: object, takes: Input) -> Tensor:
    try:
        found = one.detach().cpu().to_dense() if isinstance(one, Tensor) else _of_numpy(np.asarray(one))
    except (TypeError, ValueError, RuntimeError):
        raise SettingsError(_no_sample(one, takes)) from None
    if found.is_complex():
        raise SettingsError(_no_sample(one, takes))
    return found if found.dtype == torch.uint8 else found.float()


def _of_numpy(array: NDArray[Any]) -> Tensor:
    if array.dtype.kind not in NUMBERS:
        raise TypeError(array.dtype)
    # A number that is too large for float32 becomes infinite here. A later check reports that it is not finite.
    with np.errstate(over="ignore"):
        return torch.from_numpy(array.copy() if array.dtype == np.uint8 else array.astype(np.float32))


def _channels_first(pixels: Tensor, takes: Input) -> Tensor:
    """Move the channels of uint8 pixels to the front, where the model expects them.

    Pictures and files of arrays have the shape [..., H, W, channels], or [..., H, W] if they are grey.
    """
    if takes.kind != "image" or pixels.dtype != torch.uint8 or tuple(pixels.shape[-3:]) == takes.shape:
        return pixels
    channels, height, width = takes.shape
    if tuple(pixels.shape[-3:]) == (height, width, channels):
        return pixels.movedim(-1, -3)
    if channels == 1 and pixels.ndim < 4 and tuple(pixels.shape[-2:]) == (height, width):
        return pixels.unsqueeze(-3)
    return pixels


def _of_shape(samples: Tensor, takes: Input) -> Tensor:
    samples = _channels_first(samples, takes)
    if tuple(samples.shape) == takes.shape:
        samples = samples[None]  # The input is a single sample.
    if tuple(samples.shape[1:]) != takes.shape:
        wanted = ", ".join(map(str, takes.shape))
        raise SettingsError(
            f"the samples have the shape {list(samples.shape)}; the model takes [N, {wanted}]"
        )
    return samples


def _finite(samples: Tensor) -> Tensor:
    finite = samples.isfinite().flatten(1).all(1)
    if not finite.all():
        number = int(finite.logical_not().nonzero()[0])
        raise SettingsError(
            f"sample {number} has numbers that are not finite (NaN, infinite or too large for float32); "
            "the model takes only finite numbers"
        )
    return samples


def _no_sample(one: object, takes: Input) -> str:
    words = printable(" ".join(repr(one).split()))
    shown = f"{words[:60]}{' ...' if len(words) > 60 else ''} ({type(one).__name__})"
    pictures = "paths of pictures, or " if takes.kind == "image" else ""
    shape = ", ".join(map(str, takes.shape))
    return f"{shown} is no sample; give {pictures}an array [N, {shape}] of numbers, or a list of arrays [{shape}]"
