"""`protofleet coordinator`, `device`, `fleet`, `health`, `unban`, `go-on`: processes that run for long, and their
care."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from protofleet.deploy.cli.flags import ROUND

Jobs = Any  # argparse keeps the type of its sub-parsers to itself


def add_coordinator(jobs: Jobs) -> None:
    job = jobs.add_parser("coordinator", help="conduct a run over a broker")
    job.add_argument("settings", type=Path)
    job.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    job.add_argument("--events", action="store_true", help="print what happens as JSON lines")
    job.set_defaults(command=coordinator)


def coordinator(options: argparse.Namespace) -> int:
    from protofleet.coordinator.config import CoordinatorSettings
    from protofleet.coordinator.main import run_coordinator
    from protofleet.deploy.cli.version import software
    from protofleet.deploy.errors import RunError
    from protofleet.protocol.settings.reader import decode_file, read_toml

    settings = decode_file(CoordinatorSettings, options.settings, read_toml(options.settings), options.set)
    if problem := run_coordinator(settings, software(), options.events):
        raise RunError(problem)
    return 0


def add_device(jobs: Jobs) -> None:
    job = jobs.add_parser("device", help="take part in runs with the data of this machine")
    job.add_argument("settings", type=Path, help="TOML, plain or signed by the federation's root")
    job.add_argument(
        "--enrolled",
        default="",
        metavar="DIR",
        help="its root has to have signed them; plain ones are refused",
    )
    job.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    job.set_defaults(command=device)


def device(options: argparse.Namespace) -> int:
    from protofleet.deploy.cli.version import software
    from protofleet.deploy.errors import RunError
    from protofleet.edge_client.host.loaded_settings import load_settings
    from protofleet.edge_client.main import run_device

    given = load_settings(options.settings, options.enrolled, options.set)
    if problem := run_device(given.settings, software(), given.version):
        raise RunError(problem)
    return 0


def add_fleet(jobs: Jobs) -> None:
    job = jobs.add_parser("fleet", help="many simulated devices at once, from a folder for each")
    job.add_argument("folder", type=Path, help="holds <device>/settings.toml")
    job.set_defaults(command=fleet)


def fleet(options: argparse.Namespace) -> int:
    from protofleet.deploy.local.many_devices import run_many

    run_many(options.folder)
    return 0


def add_health(jobs: Jobs) -> None:
    job = jobs.add_parser(
        "health", help="ask a running coordinator or device how it is; exit code 1: not well"
    )
    job.add_argument("settings", type=Path, nargs="+", help="the TOML file that it runs with; or several")
    job.set_defaults(command=health)


def health(options: argparse.Namespace) -> int:
    from protofleet.deploy.cli.health import health

    found = [health(path) for path in options.settings]
    for path, (_, words) in zip(options.settings, found, strict=True):
        print(f"{path}:\n{words}" if len(found) > 1 else words)
    return 0 if all(well for well, _ in found) else 1


def add_unban(jobs: Jobs) -> None:
    job = jobs.add_parser("unban", help="let a coordinator listen again, before its ban ends, to who flooded")
    job.add_argument("name", nargs="?", default="", help="of the device; without it, say who is banned")
    job.add_argument("--folder", type=Path, required=True, help="of the run, for example runs/demo")
    job.set_defaults(command=unban)


def unban(options: argparse.Namespace) -> int:
    """The coordinator looks once a second; one that does not run finds it when it starts."""
    from protofleet.coordinator.devices.bans import bans_in, lift, words_of
    from protofleet.protocol.settings.reader import SettingsError

    folder = options.folder / "coordinator"
    if not folder.is_dir():
        raise SettingsError(f"{options.folder} is no folder of a run: there is no {folder}")
    banned = bans_in(folder)
    if not options.name:
        lines = [f"{name}: {words_of(ban)}" for name, ban in banned.items()]
        print("\n".join(lines) or f"nobody is banned in {options.folder}")
        return 0
    if options.name not in banned:
        known = ", ".join(banned) or "nobody is"
        raise SettingsError(f"{options.name} is not banned in {options.folder}; banned: {known}")
    lift(folder, options.name)
    print(f"{options.name} is banned no more; its next hello brings it back")
    return 0


def add_go_on(jobs: Jobs) -> None:
    job = jobs.add_parser("go-on", help="go on with a run from an older copy of its coordinator's folder")
    job.add_argument("folder", type=Path, help="for example runs/demo; its coordinator must not run")
    job.add_argument(
        "--from-round", type=ROUND, required=True, metavar="N",
        help="the first round that no device has answered: the copy's state counts as that of its beginning, and "
        "what was learned since the copy is lost",
    )  # fmt: skip
    job.set_defaults(command=go_on)


def go_on(options: argparse.Namespace) -> int:
    from protofleet.coordinator.spool.older_copies import go_on_from

    go_on_from(options.folder / "coordinator", options.from_round)
    print(f"{options.folder} goes on in round {options.from_round} with what this copy knows")
    return 0
