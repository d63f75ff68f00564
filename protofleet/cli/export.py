"""Implement `protofleet export`: write a run's model as files that other programs can use."""

from __future__ import annotations

import argparse
from pathlib import Path

from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options

FORMATS = ("safetensors", "onnx", "torchscript", "pt2")


def add_export(commands: Subparsers) -> None:
    command = commands.add_parser("export", help="write a run's model as files that other programs can run")
    command.add_argument(
        "run",
        type=Path,
        help="folder of a run, for example runs/demo, or folder of a coordinator or a device",
    )
    command.add_argument("--device", metavar="D", help="the model of device D (default: the global model)")
    chosen = command.add_mutually_exclusive_group()
    chosen.add_argument("--best", action="store_true", help="the model with the best validation accuracy")
    chosen.add_argument("--last", action="store_true", help="the newest model (default)")
    command.add_argument(
        "--way",
        default="predict",
        metavar="NAME",
        help="prediction mode of the exported model, one of the modes that the method evaluates (default: predict)",
    )
    command.add_argument(
        "--format", nargs="+", type=_format, choices=FORMATS, metavar="FORMAT",
        help=f"one or more of {', '.join(FORMATS)} (default: safetensors and onnx; pt2 instead of onnx if the "
        "packages for onnx are not installed)",
    )  # fmt: skip
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="(default: models/<last or best> in the run's folder)"
    )
    command.add_argument(
        "--template",
        action="store_true",
        help="also write an ONNX template, into which devices put their own parameters",
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="start a second process, and check there that each file gives the same predictions as the model",
    )
    command.add_argument(
        "--plugin", type=Path, action="append", default=[], metavar="FILE",
        help="the file of your own method or network, if the run used one and has no copy in its folder",
    )  # fmt: skip
    add_listing_options(command)
    command.set_defaults(command=export)


def _format(text: str) -> str:
    if "," in text:
        raise argparse.ArgumentTypeError(
            f"it is {text[:99]!r}; separate the formats with spaces: {text.replace(',', ' ')[:99]}"
        )
    if "/" in text or (text.lower() not in FORMATS and Path(text).exists()):
        raise argparse.ArgumentTypeError(
            f"it is {text[:99]!r}, which is no format; name the run before --format, "
            "because all words after --format are read as formats"
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
