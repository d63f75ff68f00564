"""Implement `protofleet hand-over`, and the option `--from` of `protofleet coordinator`."""

from __future__ import annotations

import argparse
import contextlib
import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options, fitted

if TYPE_CHECKING:
    from protofleet.coordinator.moving.hand_over import HandedOver
    from protofleet.coordinator.moving.place import CoordinatorPlace
    from protofleet.deploy.fleet.device.coordinator_settings import LoadedCoordinatorSettings

MOST_NAMED: Final = 10  # Largest number of runs or files that a line names.


def add_hand_over(commands: Subparsers) -> None:
    command = commands.add_parser(
        "hand-over", help="end a coordinator and pack its runs, so that it goes on on another machine"
    )
    command.add_argument("settings", type=Path, help="settings file of the coordinator, on its machine")
    command.add_argument(
        "--to", type=Path, required=True, metavar="ARCHIVE", help="file of the archive, which must not exist"
    )
    command.add_argument(
        "--with-ended", action="store_true", help="also pack the runs of a queue that are over for good"
    )
    command.add_argument(
        "--enrolled",
        default="",
        metavar="DIR",
        help="folder of the keys from `enrol`, for a signed settings file",
    )
    command.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    add_listing_options(command)
    command.set_defaults(command=_hand_over)


def _hand_over(options: argparse.Namespace) -> int:
    from protofleet.coordinator.moving.hand_over import StillRunningError, hand_over
    from protofleet.deploy.fleet.device.coordinator_settings import load_settings
    from protofleet.lab.local.misplaced import read_for
    from protofleet.runtime.command.errors import RunError

    with read_for(options.settings, "coordinator") if not options.enrolled else contextlib.nullcontext():
        loaded = load_settings(options.settings, options.enrolled, options.set)
    place, federation = place_of(loaded), loaded.settings.federation
    try:
        done = hand_over(place, federation, options.to, lambda: _end(place), options.with_ended)
    except StillRunningError as error:
        raise RunError(str(error)) from None
    listing = Listing.of(options)
    for line in _lines(done, place):
        listing.line(fitted(line))
    listing.end({
        "archive": str(done.archive), "sha256": done.digest, "bytes": done.archive.stat().st_size,
        "runs": list(done.manifest.runs), "left": list(done.left), "keys": [str(path) for path in done.keys],
    })  # fmt: skip
    return 0


def place_of(loaded: LoadedCoordinatorSettings) -> CoordinatorPlace:
    from protofleet.coordinator.moving.place import CoordinatorPlace

    run = "" if loaded.service is not None else loaded.settings.name
    return CoordinatorPlace(Path(loaded.settings.folder), run)


def _end(place: CoordinatorPlace) -> None:
    """Tell the coordinator to end, if it is running. The lock of its folder shows whether it has ended."""
    from protofleet.coordinator.moving.place import HAND_OVER
    from protofleet.runtime.command.errors import RunError
    from protofleet.runtime.control_socket import NobodyListensError, send

    request = {"id": secrets.token_hex(16), "verb": HAND_OVER, "run": place.run, "reason": ""}
    with contextlib.suppress(NobodyListensError):
        response = send(place.folder, request)
        if response.get("verdict") not in ("done", "unknown"):
            raise RunError(f"the coordinator of {place} does not end: {response.get('words', '')}")


def _lines(done: HandedOver, place: CoordinatorPlace) -> list[str]:
    manifest, size = done.manifest, done.archive.stat().st_size
    runs = ", ".join(manifest.runs[:MOST_NAMED]) + (" ..." if len(manifest.runs) > MOST_NAMED else "")
    lines = [
        f"{place} is handed over to {done.archive}: {size / 1e6:.1f} MB, {len(manifest.files):,} files, "
        f"runs: {runs or 'none'}",
        f"SHA-256 of its manifest: {done.digest}",
    ]
    if done.left:
        lines.append(f"{len(done.left)} runs that are over stay here: {', '.join(done.left[:MOST_NAMED])}")
    lines += [f"{path} holds a private key and stays here" for path in done.keys[:MOST_NAMED]]
    return [
        *lines,
        "The archive holds no keys. The other machine needs the file of this coordinator, and what it names: "
        "the folders `enrolled` and `devices`, and plug-ins",
        f"Start there: protofleet coordinator FILE --from {done.archive.name}",
    ]


def unpack_archive(archive: Path, loaded: LoadedCoordinatorSettings) -> None:
    """Unpack an archive for the coordinator of these settings, which starts next."""
    from protofleet.coordinator.moving.unpack import unpack

    log, place = logging.getLogger("protofleet.coordinator"), place_of(loaded)
    done = unpack(archive, place, loaded.settings.federation)
    if done.is_new:
        log.info(
            "%s was unpacked into %s: %d files, SHA-256 of its manifest: %s", archive, place,
            len(done.manifest.files), done.digest,
        )  # fmt: skip
    else:
        log.info("%s was unpacked into %s before, so it is not unpacked again", archive, place)
