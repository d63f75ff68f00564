"""How the numbers of a source become those that a network learns from: (x - offset) / by, channel by channel.

The constants belong to the source, or are stated in the settings of all devices alike. None is measured on a device's
own data: each domain's own mean and deviation would take away the very shift that federated methods are compared on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.input_shape import AS_IT_IS, PIXEL_SCALE, InputShape
from protofleet.protocol.settings.reader import demand_within

Values = NDArray[Any]  # uint8: pixels; float32: anything else

LARGEST: Final = 1e9
# Times the largest of a device's own numbers: what lies further out is no sample of the same kind.
FAR: Final = 100.0
Offset = Annotated[float, Within(-LARGEST, LARGEST)]
Divisor = Annotated[float, Within(1e-9, LARGEST)]


@dataclass(frozen=True)
class Scale:
    """A number for each channel, of a vector for each of its numbers; or one for all."""

    offset: tuple[Offset, ...] = (0.0,)
    by: tuple[Divisor, ...] = (1.0,)

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
        """[N, *shape]"""
        after = (1,) * (values.ndim - 2)
        offset, by = (np.array(n, np.float32).reshape(-1, *after) for n in (self.offset, self.by))
        found: NDArray[np.float32] = ((values - offset) / by).astype(np.float32)
        return found


# One scale for all domains, 0..255 to -1..1.
PIXELS: Final = Scale(*PIXEL_SCALE)
UNSCALED: Final = Scale(*AS_IT_IS)
LEVELS: Final = (2 * np.arange(256) - 255).astype(np.float32) / np.float32(255)  # PIXELS, to the last bit


@dataclass(frozen=True)
class SampleKind:
    """What a device's own samples are, and so what others must be that it learns from beside them."""

    pixels: bool
    scale: Scale = UNSCALED
    largest: float = LARGEST  # of them, once scaled

    def problem_with(self, values: Values) -> str:
        """Of one sample, as it is stored."""
        if (values.dtype == np.uint8) != self.pixels:
            if self.pixels:
                return "it has numbers that are no uint8, and this device learns from pixels; save 0 to 255 as uint8"
            return "it has pixels (uint8), and this device learns from other numbers; save it as float32"
        if self.pixels:
            return ""
        found = float(np.abs(self.scale.applied(values[None])).max())
        if found <= FAR * self.largest:
            return ""
        own = f"{FAR:g} times the {self.largest:.3g} of the device's own samples"
        return f"it has {found:.3g} once scaled, over {own}"
