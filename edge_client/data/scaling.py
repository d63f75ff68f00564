"""The scaling of a source's numbers for the input of a network: (x - offset) / by, for each channel.

The constants `offset` and `by` belong to the source, or they are the same in the settings of all devices. They
are never computed from a device's own data. Otherwise each domain would be scaled by its own mean and deviation,
which would remove the shift between domains. Federated methods are compared on data with this shift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.input_shape import AS_IT_IS, PIXEL_SCALE, InputShape
from protofleet.protocol.settings.reader import demand_within

Values = NDArray[Any]  # Values of samples: pixels have the type uint8, other numbers float32.

LARGEST: Final = 1e9
# The inbox refuses a sample whose largest number is more than this factor times the largest number in the device's
# own data.
FAR: Final = 100.0
Offset = Annotated[float, Within(-LARGEST, LARGEST)]
Divisor = Annotated[float, Within(1e-9, LARGEST)]


@dataclass(frozen=True)
class Scale:
    """The scale of samples that are not pixels.

    `offset` and `by` each have one number for each channel, or one number for all channels. Each number of a vector
    is a channel.
    """

    offset: tuple[Offset, ...] = (0.0,)
    """Numbers that are subtracted from a sample, one for each channel or one for all."""
    by: tuple[Divisor, ...] = (1.0,)
    """Numbers by which the result is divided, one for each channel or one for all."""

    def __post_init__(self) -> None:
        demand_within(self)

    def problem_with(self, shape: InputShape) -> str:
        for name, numbers in (("offset", self.offset), ("by", self.by)):
            if len(numbers) not in (1, shape.channels):
                return (
                    f"scale.{name} has {len(numbers)} numbers, it must have 1 or {shape.channels} for {shape}"
                )
        return ""

    def applied(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scaled values of samples, [N, *shape]."""
        after = (1,) * (values.ndim - 2)
        offset, by = (np.array(n, np.float32).reshape(-1, *after) for n in (self.offset, self.by))
        found: NDArray[np.float32] = ((values - offset) / by).astype(np.float32)
        return found


# The scale of pixels, from 0..255 to -1..1, which is the same for all domains.
PIXELS: Final = Scale(*PIXEL_SCALE)
UNSCALED: Final = Scale(*AS_IT_IS)
# The scaled value of each pixel value from 0 to 255, rounded in the same way on every machine.
LEVELS: Final = (2 * np.arange(256) - 255).astype(np.float32) / np.float32(255)


@dataclass(frozen=True)
class SampleKind:
    """The kind of a device's own samples; the samples of the inbox must be of this kind too."""

    pixels: bool
    scale: Scale = UNSCALED
    largest: float = LARGEST  # largest absolute value of the samples after scaling

    def problem_with(self, values: Values) -> str:
        """Return why a stored sample is not of this kind, or ""; `values` are its values before scaling."""
        if (values.dtype == np.uint8) != self.pixels:
            if self.pixels:
                return "its numbers are not uint8, but this device learns from pixels; save 0 to 255 as uint8"
            return "it has pixels (uint8), but this device learns from other numbers; save it as float32"
        if self.pixels:
            return ""
        found = float(np.abs(self.scale.applied(values[None])).max())
        if found <= FAR * self.largest:
            return ""
        own = f"{FAR:g} times the number {self.largest:.3g}, which is the largest of the device's own samples"
        return f"its largest number after scaling is {found:.3g}, which is over {own}"
