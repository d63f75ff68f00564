"""`protofleet methods`, `networks`, `data`, `keys`: what there is to choose from and to learn from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

Jobs = Any  # argparse keeps the type of its sub-parsers to itself


def add_keys(jobs: Jobs) -> None:
    job = jobs.add_parser("keys", help="make keys: <name>.key to keep, <name>.pub to hand out")
    job.add_argument("names", nargs="+", help="coordinator, or a device's name")
    job.add_argument("--folder", type=Path, default=Path("keys"))
    job.set_defaults(command=keys)


def keys(options: argparse.Namespace) -> int:
    from protofleet.deploy.local.keys import new_keys
    from protofleet.protocol.security.keys import save_public
    from protofleet.protocol.settings.reader import SettingsError
    from protofleet.protocol.wire.names import valid_name

    for name in options.names:
        path = options.folder / f"{valid_name(name)}.key"
        if path.exists():
            raise SettingsError(f"{path} exists; remove it first if the old key shall be no good any more")
        save_public(options.folder / f"{name}.pub", new_keys(path).public)
        print(f"{path} (keep it here)  {options.folder / f'{name}.pub'} (hand it out)")
    return 0


def add_lists(jobs: Jobs) -> None:
    job = jobs.add_parser("methods", help="the methods there are; or one, with its readings and settings")
    job.add_argument("name", nargs="?", default="", help="for example fedlsa")
    job.add_argument("--cost", action="store_true", help="what a round of them costs in the papers' settings")
    job.set_defaults(command=methods)
    jobs.add_parser("networks", help="the networks there are").set_defaults(command=networks)
    job = jobs.add_parser(
        "data", help="build or check data, say what is in them, and whether all have the same classes"
    )
    job.add_argument(
        "settings", type=Path, nargs="+",
        help="TOML files of devices, a coordinator, a fleet or an experiment",
    )  # fmt: skip
    job.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    job.set_defaults(command=data)


def methods(options: argparse.Namespace) -> int:
    from protofleet.methods.contract.catalog import load, names

    if options.cost:
        from protofleet.deploy.cli.costs import table

        print(table())
        return 0
    if options.name:
        from protofleet.deploy.cli.explain import explanation

        print(explanation(options.name))
        return 0
    for name in names():
        method = load(name)
        print(f"{name:12} {method.reports:9} {method.paper}")
    return 0


def networks(options: argparse.Namespace) -> int:
    from protofleet.methods.nets import catalog as nets

    print("\n".join(nets.names()))
    return 0


def data(options: argparse.Namespace) -> int:
    from protofleet.deploy.local.class_check import participants_in, require_same_classes
    from protofleet.edge_client.data.shard import load
    from protofleet.protocol.wire.class_names import listed

    participants = [
        participant for path in options.settings for participant in participants_in(path, options.set)
    ]
    require_same_classes(participants)
    for participant in participants:
        called = f"classes: {listed(participant.names) or 'unknown'}"
        if participant.data is None or participant.elsewhere:
            print(f"{participant.name:16} {participant.elsewhere:12} {called}")
            continue
        shard = load(participant.data)
        sizes = f"train {len(shard.train.y)}, validation {len(shard.validation.y)}, test {len(shard.test.y)}"
        print(
            f"{participant.name:16} {shard.domain:12} {sizes}; per class {shard.counts().tolist()}; {called}"
        )
    return 0
