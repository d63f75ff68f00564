"""The declaration of an author's own network: `NETWORK = network(build, smallest=8)` in a file."""

from __future__ import annotations

from collections.abc import Sequence

from protofleet.methods.nets.base import Net
from protofleet.methods.nets.catalog import Builder, Recipe
from protofleet.methods.plugins.errors import PlugInError, guarded
from protofleet.protocol.settings.input_shape import Axes


def network(
    make: Builder, *, smallest: int = 1, channels: int | None = None, ranks: Sequence[int] = (3,)
) -> Recipe:
    """Return the recipe of an author's network; `make(shape, classes, feature_size)` gives a Net.

    The head of the Net has `classes` outputs. `ranks` are the numbers of axes of the samples that the network
    takes: 1 for vectors, 2 for series, 3 for images. `smallest` is the smallest side of an image, or the smallest
    number of steps of a series. `channels` is the number of channels (None: any).
    """
    code = getattr(make, "__code__", None)
    where = code.co_filename if code else "NETWORK"

    def checked(shape: Axes, classes: int, feature_size: int | None) -> Net:
        made: object = guarded(lambda: make(shape, classes, feature_size), where, {where})
        if not isinstance(made, Net):
            raise PlugInError(
                f"{where}: {make.__name__} returns {type(made).__name__}, but it must return a Net"
            )
        if made.classes != classes:
            raise PlugInError(
                f"{where}: {make.__name__} returns a Net of {made.classes} classes, but the run has {classes}"
            )
        made.made_in, made.made_for = where, tuple(shape)
        return made

    return Recipe(checked, smallest, channels, tuple(ranks))
