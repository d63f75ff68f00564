"""Implement `protofleet codecs`: list the named codecs, with the bits that they send for each number."""

from __future__ import annotations

import argparse
from typing import Any, Final

from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options

SHAPE: Final = (1000, 1000)  # Shape of the array for which the bits are computed.
WAYS: Final = ("up", "down")
NOTE: Final = (
    "Bits of a number in a float32 array of 1000 x 1000 numbers, at most. `lossless` sends fewer bits only where\n"
    "zlib or an unchanged array saves some. Use a codec with `codec = \"small\"`. More: docs/codecs.md"
)  # fmt: skip


def add_codecs(commands: Subparsers) -> None:
    command = commands.add_parser("codecs", help="list the named codecs, which send arrays in fewer bytes")
    add_listing_options(command)
    command.set_defaults(command=codecs)


def codecs(options: argparse.Namespace) -> int:
    from protofleet.protocol.settings.named_codecs import NAMED

    listing, found = Listing.of(options), []
    listing.line(f"{'':10}{'weights':>14}{'prototypes':>16}\n{'':10}{'up':>7}{'down':>7}{'up':>9}{'down':>7}")
    for name, codec in NAMED.items():
        bits = bits_of(name)
        weights, prototypes = bits["weights"], bits["prototypes"]
        listing.line(
            f"{name:10}{weights['up']:7.2f}{weights['down']:7.2f}{prototypes['up']:9.2f}{prototypes['down']:7.2f}"
            f"  {codec.summary}"
        )
        found.append({"name": name, "summary": codec.summary, "bits": bits})
    listing.line(NOTE)
    listing.end({"codecs": found})
    return 0


def bits_of(name: Any) -> dict[str, dict[str, float]]:
    """Return, for each kind and direction, the largest size of an array's element in bits."""
    from protofleet.protocol.coding.sizes import ExpectedArray, most_bytes_of_kind
    from protofleet.protocol.settings.named_codecs import stages_of

    found: dict[str, dict[str, float]] = {}
    for kind in ("weights", "prototypes"):
        codec = stages_of(name, (kind,))
        assert codec is not None
        array = ExpectedArray(f"{kind}.a", "float32", SHAPE, in_broadcast=True)
        stages = {"up": codec.up[kind], "down": codec.down[kind]}
        numbers = SHAPE[0] * SHAPE[1]
        found[kind] = {way: 8 * most_bytes_of_kind([array], stages[way]) / numbers for way in WAYS}
    return found
