"""What an author of a network says of it: `NETWORK = network(build, smallest=8)` in a file of one's own."""

from __future__ import annotations

from protofleet.methods.nets.base import Image, Net
from protofleet.methods.nets.catalog import Builder, Recipe
from protofleet.methods.plugins.errors import PlugInError, guarded


def network(make: Builder, *, smallest: int = 1, channels: int | None = None) -> Recipe:
    """`make(image, classes, feature_size)` gives a Net whose head has `classes` outputs; `smallest` is the side of an
    image that it takes, `channels` how many it has (None: any)."""

    code = getattr(make, "__code__", None)
    where = code.co_filename if code else "NETWORK"

    def checked(image: Image, classes: int, feature_size: int | None) -> Net:
        made: object = guarded(lambda: make(image, classes, feature_size), where, {where})
        if not isinstance(made, Net):
            raise PlugInError(f"{where}: {make.__name__} gives {type(made).__name__}; it must give a Net")
        if made.classes != classes:
            raise PlugInError(
                f"{where}: {make.__name__} gives a Net of {made.classes} classes, asked for {classes}"
            )
        return made

    return Recipe(checked, smallest, channels)
