"""What an author of a network says of it: `NETWORK = network(build, smallest=8)` in a file of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from protofleet.methods.nets.base import Net
from protofleet.methods.nets.catalog import Builder, Recipe
from protofleet.methods.plugins.errors import PlugInError, guarded
from protofleet.protocol.settings.input_shape import Axes


def network(
    make: Builder, *, smallest: int = 1, channels: int | None = None, ranks: Sequence[int] = (3,)
) -> Recipe:
    """`make(shape, classes, feature_size)` gives a Net whose head has `classes` outputs.

    `ranks` are the numbers of axes of samples that it takes: 1 vectors, 2 series, 3 images; `smallest` is the side of
    an image or the steps of a series, `channels` how many of them there are (None: any).
    """

    code = getattr(make, "__code__", None)
    where = code.co_filename if code else "NETWORK"

    def checked(shape: Axes, classes: int, feature_size: int | None) -> Net:
        made: object = guarded(lambda: make(shape, classes, feature_size), where, {where})
        if not isinstance(made, Net):
            raise PlugInError(f"{where}: {make.__name__} gives {type(made).__name__}; it must give a Net")
        if made.classes != classes:
            raise PlugInError(
                f"{where}: {make.__name__} gives a Net of {made.classes} classes, asked for {classes}"
            )
        made.made_in, made.made_for = where, tuple(shape)
        return made

    return Recipe(checked, smallest, channels, tuple(ranks))
