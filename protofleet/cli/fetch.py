"""Implement `protofleet data --fetch NAME`: show the licence, fetch the files, show how to name them."""

from __future__ import annotations

import argparse
from pathlib import Path

from protofleet.edge_client.data.cache import default_folder
from protofleet.lab.datasets.catalog import DIGITS, SETS, named
from protofleet.lab.datasets.digits_packages import LICENCES, fetch_packages
from protofleet.lab.datasets.download import Downloader, Say
from protofleet.lab.datasets.fetch import fetch
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.listing import Listing


def fetch_all(options: argparse.Namespace) -> None:
    if not options.fetch and options.picture:
        raise SettingsError(
            f"--picture takes {options.picture!r} as the path of the picture; "
            "write the settings files before --picture"
        )
    if not options.fetch:
        raise SettingsError("data takes settings files, or --fetch NAME (see protofleet data --help)")
    if options.settings or options.picture is not None or options.set:
        raise SettingsError(
            "--fetch takes no settings, --picture or --set; use a second command to look at the fetched data"
        )
    names = list(dict.fromkeys(map(named, options.fetch)))
    if options.root and DIGITS in names:
        raise SettingsError(
            "--root cannot be used for digits, because digits are stored in the cache; set the folder of the cache "
            "with the variable PROTOFLEET_DATA"
        )
    if options.root and len(names) > 1:
        raise SettingsError(
            f"--root is one folder, and --fetch names {len(names)} data sets; run one command for each data set"
        )
    listing = Listing.of(options)
    say = Downloader(listing.line)
    fetched = []
    for name in names:
        if name == DIGITS:
            fetched.append(fetch_digits(say.say))
            continue
        folder = Path(options.root).expanduser() if options.root else default_folder() / name
        say.say(f"{name}: {SETS[name].licence}")
        chosen = SETS[name]
        if chosen.packaged is not None:
            chosen.packaged(folder, say.say)
        elif chosen.published is not None:
            fetch(chosen.published(), folder, say)
        root = f', root = "{folder.absolute()}"' if options.root else ""
        say.say(f'{name} is in {folder}; in an experiment: data = {{ source = "{name}"{root} }}')
        fetched.append({"name": name, "licence": SETS[name].licence, "folder": str(folder.absolute())})
    listing.end({"fetched": fetched})


def fetch_digits(say: Say) -> dict[str, str]:
    say(f"{DIGITS}: {LICENCES}")
    folder = fetch_packages(say)
    say(f'{DIGITS} can be read; in an experiment: data = {{ source = "{DIGITS}" }}')
    return {"name": DIGITS, "licence": LICENCES, "folder": str(folder.absolute())}
