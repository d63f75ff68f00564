"""Implement `protofleet codecs`: list the named codecs, the bits that they send for a number, and measured losses."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options

if TYPE_CHECKING:
    from protofleet.lab.report.measured_codecs import MeasuredMethod

SHAPE: Final = (1000, 1000)  # Shape of the array for which the bits are computed.
WAYS: Final = ("up", "down")
NOTE: Final = (
    "Bits of a number in a float32 array of 1000 x 1000 numbers, at most. `lossless` sends fewer bits only where\n"
    "zlib or an unchanged array saves some. Use a codec with `codec = \"small\"`. More: docs/codecs.md"
)  # fmt: skip
MEASURED: Final = (
    "\nMeasured: bytes of arrays, and the difference in accuracy in percentage points from runs of the same seeds\n"
    "with codec off, as mean ± standard error. A difference below two standard errors is not certain."
)


def add_codecs(commands: Subparsers) -> None:
    command = commands.add_parser("codecs", help="list the named codecs, which send arrays in fewer bytes")
    add_listing_options(command)
    command.set_defaults(command=codecs)


def codecs(options: argparse.Namespace) -> int:
    from protofleet.lab.report.measured_codecs import read_measured
    from protofleet.protocol.settings.named_codecs import NAMED

    listing, found, measured = Listing.of(options), [], read_measured()
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
    listing.line(MEASURED)
    for method in measured:
        listing.line(measured_text(method))
    listing.end({"codecs": found, "measured": [asdict(method) for method in measured]})
    return 0


def measured_text(method: MeasuredMethod) -> str:
    """Return a line about the runs with codec off, and a line for each codec."""
    from protofleet.lab.report.measured_codecs import seed_text

    return "\n".join(
        [
            f"{method.name}: {method.experiment}, {method.rounds} rounds, {seed_text(method.seeds)}, {method.date}, "
            f"commit {method.commit}; {method.accuracy:.1f} % with codec off",
            *(
                f"  {one.codec:10}{one.times_arrays:6.1f} times fewer bytes  {one.points} points"
                f"{'' if one.seeds == method.seeds else f', {seed_text(one.seeds)}'}"
                for one in method.codecs
            ),
        ]
    )


def bits_of(name: Any) -> dict[str, dict[str, float]]:
    """Return, for each kind and direction, the largest size of an array's element in bits."""
    from protofleet.methods.contract.round_arrays import CrossingArray
    from protofleet.protocol.coding.sizes import most_bytes_of_kind
    from protofleet.protocol.settings.named_codecs import stages_of

    found: dict[str, dict[str, float]] = {}
    for kind in ("weights", "prototypes"):
        codec = stages_of(name, (kind,))
        assert codec is not None
        array = CrossingArray(f"{kind}.a", "float32", SHAPE, in_broadcast=True, phase="")
        stages = {"up": codec.up[kind], "down": codec.down[kind]}
        numbers = SHAPE[0] * SHAPE[1]
        found[kind] = {way: 8 * most_bytes_of_kind([array], stages[way]) / numbers for way in WAYS}
    return found
