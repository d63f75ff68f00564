"""Implement `protofleet check FILE`: run the contract suite on the user's method, network, data or metrics."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.user_error import FAILED
from protofleet.runtime.command.arguments import CHANNELS, SIDE, Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options

if TYPE_CHECKING:
    from protofleet.lab.contract.checks import Check
    from protofleet.methods.plugins.allowed import PlugIns

KINDS = ("method", "network", "data", "metrics")


def add_check(commands: Subparsers) -> None:
    command = commands.add_parser(
        "check",
        help="run the contract suite on your own method, network, data or metrics; the exit code is 1 if a check "
        "fails",
    )
    command.add_argument(
        "file", type=Path, help="a Python file that defines METHOD, NETWORK, DATA or METRICS"
    )
    kind = command.add_mutually_exclusive_group()
    kind.add_argument(
        "--method",
        nargs="?",
        const="",
        metavar="NAME",
        help="check METHOD, and use NAME as the name of the method (default: the name of the file)",
    )
    kind.add_argument("--network", action="store_true", help="check NETWORK")
    kind.add_argument("--data", action="store_true", help="check DATA")
    kind.add_argument("--metrics", action="store_true", help="check METRICS")
    command.add_argument("--root", default="", metavar="DIR", help="data.root for DATA")
    command.add_argument(
        "--size", type=SIDE, default=32, metavar="N", help="data.size for DATA (default: 32)"
    )
    command.add_argument(
        "--channels", type=CHANNELS, default=3, metavar="N", help="data.channels for DATA (default: 3)"
    )
    add_listing_options(command)
    command.set_defaults(command=check)


@contextlib.contextmanager
def unsaid() -> Iterator[None]:
    """Silence the log of the small federations that the checks run."""
    log = logging.getLogger("protofleet")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def check(options: argparse.Namespace) -> int:
    from protofleet.lab.contract.checks import outcomes, scratch
    from protofleet.lab.local.own_plugins import own_plugins
    from protofleet.methods.plugins.file import module_of

    path, listing = str(options.file), Listing.of(options)
    found = own_plugins([path])
    kinds = chosen(options, vars(module_of(found.sources[path])))
    for kind in kinds:
        demand(kind, options.file.stem, found.hashes[0])
    failed, rows = 0, list[dict[str, Any]]()
    with scratch() as folder, unsaid():
        for kind in kinds:
            checks: dict[str, Check] = dict(
                checks_of(kind, options, found.hashes[0], found.allowed(), Path(folder))
            )
            for one in outcomes(checks, path):
                words = "ok" if one.holds else one.problem
                listing.line(f"{one.seconds:6.1f} s  {kind} {one.name}: {words}", wrong=not one.holds)
                rows.append(
                    {
                        "kind": kind,
                        "check": one.name,
                        "seconds": round(one.seconds, 3),
                        "problem": one.problem,
                    }
                )
                failed += not one.holds
    seconds = sum(row["seconds"] for row in rows)
    listing.line(f"{len(rows)} checks in {seconds:.1f} s, {failed or 'none'} failed", wrong=bool(failed))
    listing.end({"file": path, "sha256": found.hashes[0], "failed": failed, "checks": rows})
    return FAILED if failed else 0


def chosen(options: argparse.Namespace, names: dict[str, object]) -> list[str]:
    wished = [kind for kind in KINDS if getattr(options, kind) not in (None, False)]
    there = [kind for kind in KINDS if kind.upper() in names]
    if missing := [kind for kind in wished if kind not in there]:
        from protofleet.methods.plugins.found import SAYS

        raise SettingsError(f"{options.file.name} has no {SAYS[missing[0]]}")
    if not (wished or there):
        raise SettingsError(
            f"{options.file.name} has no METHOD, no NETWORK, no DATA and no METRICS; docs/plug-ins.md shows each"
        )
    return wished or there


def demand(kind: str, name: str, sha256: str) -> None:
    """Raise one error if the file has no usable object, so that not every check reports the same error."""
    from protofleet.edge_client.data.own import loader
    from protofleet.methods.contract.catalog import load
    from protofleet.methods.contract.own_metrics import metrics_of
    from protofleet.methods.nets.catalog import recipe_of

    match kind:
        case "method":
            load(name, sha256)
        case "network":
            recipe_of(name, sha256)
        case "data":
            loader(name, sha256)
        case "metrics":
            metrics_of(sha256)


def checks_of(
    kind: str, options: argparse.Namespace, sha256: str, allowed: PlugIns, folder: Path
) -> Mapping[str, Check]:
    from protofleet.edge_client.data.settings import DataSettings
    from protofleet.lab.contract.checks import Bench, of_data, of_method, of_metrics, of_network
    from protofleet.lab.contract.worlds import Subject
    from protofleet.methods.contract.own_metrics import metrics_of
    from protofleet.methods.contract.plan import Network
    from protofleet.protocol.settings.reader import decode

    path, stem = str(options.file), options.file.stem
    if kind == "method":
        subject = Subject(options.method or stem, sha256, allowed=allowed)
        return of_method(Bench(subject, folder / "method"))
    if kind == "network":
        return of_network(Network(stem, plugin=sha256), allowed, folder / "network")
    if kind == "metrics":
        return of_metrics(metrics_of(sha256))
    table = {"file": path, "root": options.root, "size": options.size, "channels": options.channels}
    return of_data(decode(DataSettings, table, "data"), allowed, folder / "data")
