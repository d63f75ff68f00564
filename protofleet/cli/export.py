"""Implement `protofleet export`: write a model of a run as files that other programs can run."""

from __future__ import annotations

import argparse
from pathlib import Path

from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options

FORMATS = ("safetensors", "onnx", "torchscript", "pt2")


def add_export(commands: Subparsers) -> None:
    command = commands.add_parser("export", help="a run's model as files that anybody can run")
    command.add_argument(
        "run", type=Path, help="for example runs/demo; or the folder of a coordinator or a device"
    )
    command.add_argument("--device", metavar="D", help="that device's own model; default: the model of all")
    chosen = command.add_mutually_exclusive_group()
    chosen.add_argument("--best", action="store_true", help="the best by validation")
    chosen.add_argument("--last", action="store_true", help="the newest (default)")
    command.add_argument(
        "--way", default="predict", metavar="NAME", help="another way to predict that the method measures"
    )
    command.add_argument(
        "--format", nargs="+", type=_format, choices=FORMATS, metavar="FORMAT",
        help=f"of {', '.join(FORMATS)}; default: safetensors, and onnx where its packages are, else pt2",
    )  # fmt: skip
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="default: models/<last or best> in the run's folder"
    )
    command.add_argument(
        "--template", action="store_true", help="an ONNX file that boards fill with their own numbers"
    )
    command.add_argument(
        "--check", action="store_true", help="compare each file, in another process, with the model"
    )
    command.add_argument(
        "--plugin", type=Path, action="append", default=[], metavar="FILE",
        help="a method or network of your own that the run was made with, where its folder does not keep it",
    )  # fmt: skip
    add_listing_options(command)
    command.set_defaults(command=export)


def _format(text: str) -> str:
    if "," in text:
        raise argparse.ArgumentTypeError(
            f"it is {text[:99]!r}; put spaces between names: {text.replace(',', ' ')[:99]}"
        )
    if "/" in text or (text.lower() not in FORMATS and Path(text).exists()):
        raise argparse.ArgumentTypeError(
            f"it is {text[:99]!r}, which is no format; the run goes before --format, which takes all that follows it"
        )
    return text.lower()


def export(options: argparse.Namespace) -> int:
    from protofleet.lab.export.export import Order, export_model
    from protofleet.lab.export.source import Wanted
    from protofleet.lab.local.own_plugins import own_plugins
    from protofleet.runtime.installation.version import installed_version

    listing = Listing.of(options)
    named = own_plugins(list(map(str, options.plugin))).allowed()
    wanted = Wanted("best" if options.best else "last", options.device, options.way, named)
    order = Order(
        options.run, wanted, tuple(options.format or ()), options.out, options.template, options.check,
        installed_version(),
    )  # fmt: skip
    done = export_model(order, listing.line)
    listing.line(f"model: {done.folder}")
    listing.end(done.as_object())
    return 0
