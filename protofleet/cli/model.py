"""Implement `protofleet model`: list the versions of a model that a device serves, and choose one."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options

if TYPE_CHECKING:
    from protofleet.edge_client.serving.versions import ModelVersions, Version

# The folders in which versions of a model are looked for: the first two are on a user's machine, the last is on a
# deployed device.
LOOKED_IN: Final = (Path("models"), Path("state"), Path("/var/lib/protofleet/state"))
VERSION: Final = re.compile(r"v?0*(\d{1,9})")


def add_model(commands: Subparsers) -> None:
    command = commands.add_parser("model", help="list, pin or roll back the models that a device serves")
    steps = command.add_subparsers(required=True, metavar="STEP", title="steps")
    step = steps.add_parser("list", help="list all versions, and show which one is served")
    add_listing_options(step)
    step.set_defaults(command=list_versions)
    _add_folder(step)
    step = steps.add_parser("pin", help="serve this version, even if the device learns newer versions")
    step.add_argument("version", type=_version, help="for example v000017")
    step.set_defaults(command=pin)
    _add_folder(step)
    step = steps.add_parser("unpin", help="serve the newest version again")
    step.set_defaults(command=unpin)
    _add_folder(step)
    step = steps.add_parser("rollback", help="serve the version before the present one, and pin it")
    step.set_defaults(command=rollback)
    _add_folder(step)


def _add_folder(step: argparse.ArgumentParser) -> None:
    step.add_argument(
        "folder", type=Path, nargs="?",
        help="folder of the models or of the device's state (default: the first existing one of "
        f"{', '.join(map(str, LOOKED_IN))})",
    )  # fmt: skip


def _version(text: str) -> int:
    if (found := VERSION.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"it is {text[:99]!r}, it must be a version such as v000017")
    return int(found[1])


def found_versions(folder: Path | None) -> ModelVersions | None:
    from protofleet.edge_client.serving.versions import ModelVersions

    for place in LOOKED_IN if folder is None else (folder,):
        for versions in (ModelVersions(place / "models"), ModelVersions(place)):
            if versions.whole() or versions.named("current"):
                return versions
    return None


def versions_in(folder: Path | None) -> ModelVersions:
    """Return the versions in a folder or in a default folder; raise SettingsError if there is no version."""
    from protofleet.lab.export.mistaken import no_versions
    from protofleet.protocol.settings.reader import SettingsError

    if (found := found_versions(folder)) is not None:
        return found
    if folder is not None:
        raise SettingsError(no_versions(folder))
    looked = ", ".join(map(str, LOOKED_IN))
    raise SettingsError(
        f"there is no version of a model in {looked}: name the folder of a device that has [models] in its settings "
        "and has taken part in a round since then; run the command as a user who may read this folder"
    )


def list_versions(options: argparse.Namespace) -> int:
    from protofleet.edge_client.serving.versions import LINKS

    listing, versions = Listing.of(options), versions_in(options.folder)
    named = {link: version.number for link in LINKS if (version := versions.named(link))}
    rows: list[dict[str, Any]] = []
    for version in versions.whole():
        links = [link for link, number in named.items() if number == version.number]
        rows.append(_row(version, links))
        listing.line(_line(version, links), wrong=bool(version.problem))
    listing.end({"folder": str(versions.folder), "versions": rows})
    return 0


def _row(version: Version, links: list[str]) -> dict[str, Any]:
    return {
        "version": version.name, "links": links, "kind": version.kind, "round": version.round,
        "validation": version.validation, "made": version.made, "plan": version.plan, "problem": version.problem,
    }  # fmt: skip


def _line(version: Version, links: list[str]) -> str:
    if version.problem:
        return f"{version.name}  {version.problem}  {' '.join(links)}".rstrip()
    measured = "        -" if version.validation is None else f"{version.validation:9.1%}"
    return (
        f"{version.name}  {version.kind:8}  round {version.round:<6}{measured}  {version.made:25}  {' '.join(links)}"
    ).rstrip()


def pin(options: argparse.Namespace) -> int:
    versions = versions_in(options.folder)
    return _say(versions, versions.pin(options.version), "pinned: later versions are stored, but not served")


def unpin(options: argparse.Namespace) -> int:
    versions = versions_in(options.folder)
    return _say(versions, versions.unpin(), "the newest; later versions will be served too")


def rollback(options: argparse.Namespace) -> int:
    versions = versions_in(options.folder)
    said = "pinned; `protofleet model unpin` serves the newest version again"
    return _say(versions, versions.rollback(), said)


def _say(versions: ModelVersions, version: Version, words: str) -> int:
    print(f"{versions.folder / 'current'} is {version.name} of round {version.round} ({words})")
    return 0
