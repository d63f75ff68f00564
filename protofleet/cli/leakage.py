"""Implement `protofleet leakage`: measure what the answers of a run give away."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from protofleet.runtime.command.arguments import ROUND, Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options

if TYPE_CHECKING:
    from protofleet.lab.leakage.observed import Observed

MINE: Final = "mine"
PAGE: Final = "leakage.html"


def add_leakage(commands: Subparsers) -> None:
    command = commands.add_parser(
        "leakage", help="measure what the answers of a run give away about the samples of its devices"
    )
    command.add_argument(
        "run",
        help=f"folder of the run, for example runs/demo; or `{MINE}`, to measure this device's own answers",
    )
    command.add_argument(
        "settings", type=Path, nargs="?", help=f"settings file of the device, only for `{MINE}`"
    )
    command.add_argument("--device", default="", help="measure only this device (default: all devices)")
    command.add_argument(
        "--attacker", default="A1",
        help="strongest attacker: A0 (one upload), A1 (all messages; default), A2 (A1 and samples that no device has "
        "used), A3 (A2 and the device's network)",
    )  # fmt: skip
    command.add_argument(
        "--kinds", default="", metavar="KIND,...", help="attack only these kinds of arrays, such as features"
    )
    command.add_argument(
        "--round", type=ROUND, metavar="N", help="round whose answers are attacked (default: the last one)"
    )
    command.add_argument(
        "--page", type=Path, metavar="FILE", help=f"where the page goes (default: {PAGE} there)"
    )
    command.add_argument(
        "--replay",
        action="store_true",
        help="run the experiment again in this process; no answer need be kept",
    )
    command.add_argument(
        "--thorough",
        action="store_true",
        help="also try decoder networks, inversion of gradients and a bound of information: minutes a device",
    )
    command.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help=f"plan of the run, if the device keeps no model; only for `{MINE}`",
    )
    command.add_argument(
        "--enrolled", default="", metavar="FOLDER", help="check signed settings with the root in this folder"
    )
    add_listing_options(command)
    command.set_defaults(command=leakage)


def leakage(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from protofleet.lab.leakage.measure import measured
    from protofleet.lab.leakage.query import query_of
    from protofleet.lab.leakage.rows import file_of
    from protofleet.lab.report.leakage_file import write_leakage
    from protofleet.lab.report.leakage_page import leakage_text, write_leakage_page

    listing = Listing.of(options)
    demand_fitting_options(options)
    query_of(None, options.device, options.attacker, options.kinds, options.round)  # Before the slow work.
    folder, name, observed = _observed(options, listing)
    query = query_of(
        observed, options.device, options.attacker, options.kinds, options.round, options.thorough
    )
    found = file_of(observed, measured(observed, query, options.round), options.round)
    write_leakage(folder, found)
    page = write_leakage_page(found, name, options.page or folder / PAGE)
    listing.line(leakage_text(found))
    listing.line(f"page: {page}")
    listing.end({**asdict(found), "page": str(page)})
    return 0


def demand_fitting_options(options: argparse.Namespace) -> None:
    """Raise SettingsError for options that do not fit together."""
    from protofleet.protocol.settings.reader import SettingsError

    mine = options.run == MINE
    if mine and options.settings is None:
        raise SettingsError(f"`leakage {MINE}` needs the device's settings: leakage {MINE} device.toml")
    if mine and options.replay:
        raise SettingsError(
            f"--replay is for the folder of a run; `leakage {MINE}` reads the device's own answers"
        )
    if not mine and (extra := options.settings or options.plan):
        raise SettingsError(f"{extra} is only for `leakage {MINE}`; leave it out for the folder of a run")


def _observed(options: argparse.Namespace, listing: Listing) -> tuple[Path, str, Observed]:
    """Return the folder for the results, the name for the page, and what was observed."""
    if options.run == MINE:
        from protofleet.edge_client.host.loaded_settings import verified_settings
        from protofleet.lab.leakage.kept_answers import plan_in
        from protofleet.lab.leakage.own_folder import observed_by

        settings = verified_settings(options.settings, options.enrolled, []).settings
        observed = observed_by(settings, plan_in(options.plan) if options.plan else None)
        return Path(settings.folder), settings.name, observed
    from protofleet.lab.leakage.sources import observed_in, replayed

    folder = Path(options.run)
    if not options.replay:
        return folder, folder.name, observed_in(folder)
    observed, words = replayed(folder, options.round)
    listing.line(words)
    return folder, folder.name, observed
