"""Implement `protofleet coordinator`, `device` and `fleet`.

Also implement `health`, `unban` and `go-on`, which are used for running processes or for stored runs.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from protofleet.cli.hand_over import unpack_archive
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.user_error import FAILED
from protofleet.runtime.command.arguments import (
    DEVICES,
    EPOCH,
    ROUND,
    Subparsers,
    broker_changes,
    share_of_devices,
)
from protofleet.runtime.command.listing import Listing, add_listing_options
from protofleet.runtime.interrupts import held_interrupts


def add_log(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--log", choices=("text", "json"), default="text",
        help="json: one object per line on standard error, for a log collector",
    )  # fmt: skip


def add_coordinator(commands: Subparsers) -> None:
    command = commands.add_parser(
        "coordinator", help="coordinate a run over a broker, or all runs that are submitted"
    )
    command.add_argument(
        "settings",
        type=Path,
        help="settings file in TOML, either unsigned or signed by the federation's root; if it names no run, the "
        "coordinator conducts the runs of `protofleet submit`",
    )
    _add_enrolled(command)
    command.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    command.add_argument(
        "--events", action="store_true", help="print the run's events as JSON lines on standard output"
    )
    command.add_argument(
        "--take-over", action="store_true",
        help="ask the coordinator that leads the federation to end, and lead in its place",
    )  # fmt: skip
    command.add_argument(
        "--from", type=Path, metavar="ARCHIVE", dest="source",
        help="first unpack the archive of `protofleet hand-over`, unless it was unpacked here before",
    )  # fmt: skip
    # `protofleet run` sets it for the broker that it starts: no other coordinator knows this broker.
    command.add_argument("--own-broker", action="store_true", help=argparse.SUPPRESS)
    command.add_argument(
        "--restored",
        action="store_true",
        help="the folder came back from a backup: if a device proves that it has heard a higher epoch, claim an "
        "epoch above it; all runs of a queue are paused first",
    )
    command.add_argument(
        "--above",
        type=EPOCH,
        default=0,
        metavar="N",
        help="with --restored: claim an epoch above N from the start",
    )
    add_log(command)
    command.set_defaults(command=coordinator)


def _add_enrolled(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--enrolled",
        default="",
        metavar="DIR",
        help="folder of the keys from `enrol`; settings without the root's signature are refused",
    )


def coordinator(options: argparse.Namespace) -> int:
    with held_interrupts():
        from protofleet.coordinator.main import run_coordinator
        from protofleet.coordinator.server.budget_spent import BudgetSpentError
        from protofleet.coordinator.server.diverged import DivergedError
        from protofleet.coordinator.start import StartOptions
        from protofleet.deploy.fleet.device.coordinator_settings import load_settings
        from protofleet.edge_client.host.loaded_settings import refuse_downgrade
        from protofleet.lab.local.misplaced import read_for
        from protofleet.runtime.installation.provenance import software
        from protofleet.runtime.installation.version import installed_version

    # If the file is for another command, `read_for` raises an error that names the other command. With --enrolled,
    # the file must have a signature. Then the error about the missing signature is more useful.
    with read_for(options.settings, "coordinator") if not options.enrolled else contextlib.nullcontext():
        loaded = load_settings(options.settings, options.enrolled, options.set)
    settings = loaded.settings
    if options.source:
        unpack_archive(options.source, loaded)
    if loaded.version:
        refuse_downgrade(Path(settings.folder), loaded.version, options.settings)
    claimed = _claimed(options, Path(settings.folder), settings.federation)
    how = StartOptions(options.take_over, alone=options.own_broker)
    if loaded.service is not None:
        with held_interrupts():
            from protofleet.coordinator.run_service import run_service

        service, build = loaded.service, software()
        return end_of_coordinator(
            claimed(
                lambda first: run_service(
                    service, installed_version(), options.events, report_on, build, replace(how, pauses=first)
                )
            )
        )
    folder = Path(settings.folder) / settings.name
    try:
        if problem := claimed(
            lambda _: run_coordinator(settings, installed_version(), options.events, software(), how)
        ):
            return end_of_coordinator(problem)
    except (DivergedError, BudgetSpentError):
        report_on(folder)
        raise
    report_on(folder)
    return 0


def _claimed(
    options: argparse.Namespace, runs: Path, federation: str
) -> Callable[[Callable[[bool], str]], str]:  # fmt: skip
    """Return a function that conducts, and conducts again above a proved epoch if the options say `--restored`."""
    from protofleet.coordinator.start import claim_above, claim_again
    from protofleet.lab.local.misplaced import conducted_from
    from protofleet.protocol.settings.reader import SettingsError

    if options.above and not options.restored:
        raise SettingsError("--above is only for a folder that came back from a backup; add --restored")
    if options.above:
        claim_above(options.above, runs, federation, int(time.time()))

    def claimed(conduct: Callable[[bool], str]) -> str:
        with conducted_from(options.settings):
            return claim_again(conduct, options.restored, runs, federation)

    return claimed


def end_of_coordinator(reason: str) -> int:
    """Return the exit code 0 for a coordinator that was handed over; raise the error for another early end."""
    from protofleet.coordinator.moving.place import MOVED
    from protofleet.runtime.command.errors import ended_early

    if reason != MOVED:
        raise ended_early(reason)
    logging.getLogger("protofleet.coordinator").info("the coordinator has ended, because it is handed over")
    return 0


def report_on(folder: Path) -> None:
    """Write the report of a run that has ended.

    The result of the run is already in summary.json, so an error in the report does not make the run fail.
    """
    from protofleet.lab.report.run_page import write_report

    log = logging.getLogger("protofleet.coordinator")
    try:
        log.info("report: %s", write_report(folder))
    except Exception as error:  # noqa: BLE001 - the run itself has ended well
        log.warning(
            "the report of %s was not written: %s; `protofleet report %s` writes this report",
            folder,
            error,
            folder,
        )


def add_device(commands: Subparsers) -> None:
    command = commands.add_parser("device", help="take part in runs with the data of this machine")
    command.add_argument(
        "settings",
        type=Path,
        nargs="+",
        help="settings files in TOML, either unsigned or signed by the federation's root; the devices of several "
        "files share one process",
    )
    _add_enrolled(command)
    command.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    command.add_argument(
        "--ended",
        type=Path,
        metavar="FILE",
        help="JSON file for the names of the devices that ended early; a device starts again at most twice",
    )
    add_log(command)
    command.set_defaults(command=device)


def device(options: argparse.Namespace) -> int:
    with held_interrupts():
        from protofleet.edge_client.group.main import run_devices
        from protofleet.edge_client.host.loaded_settings import load_settings
        from protofleet.edge_client.main import run_device
        from protofleet.lab.local.misplaced import read_for
        from protofleet.runtime.command.errors import RunError, ended_early
        from protofleet.runtime.installation.version import installed_version

    loaded = []
    for path in options.settings:
        with read_for(path, "device") if not options.enrolled else contextlib.nullcontext():
            loaded.append(load_settings(path, options.enrolled, options.set))
    if len(loaded) == 1 and options.ended is None:
        (one,) = loaded
        if problem := run_device(one.settings, installed_version(), one.version):
            raise ended_early(problem)
    elif ended := run_devices(loaded, installed_version(), options.ended):
        if len(set(ended.values())) == 1 and len(ended) == len(loaded):
            raise ended_early(next(iter(ended.values())))
        reasons = "; ".join(f"{name}: {why}" for name, why in ended.items())
        raise RunError(f"{len(ended)} of {len(loaded)} devices ended early: {reasons}")
    return 0


def add_fleet(commands: Subparsers) -> None:
    command = commands.add_parser(
        "fleet", help="run many simulated devices, each with its own folder of settings"
    )
    command.add_argument(
        "folder", type=Path, help="a folder with <device>/settings.toml or <device>/device.toml"
    )
    command.add_argument(
        "--broker",
        type=broker_changes,
        default=(),
        metavar="HOST[:PORT]",
        help="use this broker instead of the broker in the devices' settings",
    )
    command.add_argument(
        "--processes",
        type=DEVICES,
        default=0,
        metavar="N",
        help="number of processes that the devices share (default: one process for each device)",
    )
    command.add_argument(
        "--share",
        type=share_of_devices,
        default=None,
        metavar="I/N",
        help="run only part I of N parts of the devices of a run, in one process; the first part is 0",
    )
    command.add_argument(
        "--broker-file",
        type=Path,
        metavar="FILE",
        help="JSON file with host and port of the broker; when it changes, the devices start again (with --share)",
    )
    command.add_argument(
        "--ended",
        type=Path,
        metavar="FILE",
        help="JSON file for the names of the devices that have failed (with --share)",
    )
    command.set_defaults(command=fleet)


def fleet(options: argparse.Namespace) -> int:
    if options.share is not None:
        return fleet_share(options)
    for option in ("broker_file", "ended"):
        if getattr(options, option) is not None:
            name = option.replace("_", "-")
            raise SettingsError(
                f"--{name} is only for a part of the devices; add --share 0/1 for all devices"
            )
    with held_interrupts():
        from protofleet.lab.local.many_devices import run_devices

    run_devices(options.folder, options.broker, options.processes)
    return 0


def fleet_share(options: argparse.Namespace) -> int:
    if options.processes > 1:
        raise SettingsError(
            f"--processes is {options.processes}, but the devices of a share have one process; leave out --processes"
        )
    if options.broker and options.broker_file is not None:
        raise SettingsError("--broker and --broker-file both name the broker; leave out one of them")
    with held_interrupts():
        from protofleet.lab.local.share import DeviceShare, run_share

    run_share(options.folder, DeviceShare(*options.share), options.broker_file, options.ended, options.broker)
    return 0


def add_health(commands: Subparsers) -> None:
    command = commands.add_parser(
        "health",
        help="ask a running coordinator or device for its health; the exit code is 1 if a check fails",
    )
    command.add_argument(
        "settings",
        type=Path,
        nargs="+",
        help="the TOML files of the coordinators or devices",
    )
    add_listing_options(command)
    command.set_defaults(command=health)


def health(options: argparse.Namespace) -> int:
    from protofleet.cli.health import health, line_of

    listing = Listing.of(options)
    found = {str(path): health(path) for path in options.settings}
    for path, checks in found.items():
        if len(found) > 1:
            listing.line(f"{path}:", wrong=any(checks.values()))
        for name, problem in checks.items():
            listing.line(line_of(name, problem), wrong=bool(problem))
    healthy = not any(problem for checks in found.values() for problem in checks.values())
    listing.end({"healthy": healthy, "checks": found})
    return 0 if healthy else FAILED


def add_unban(commands: Subparsers) -> None:
    command = commands.add_parser("unban", help="end the ban of a device that has flooded a coordinator")
    command.add_argument(
        "name", nargs="?", default="", help="name of the device; without it, the banned devices are listed"
    )
    command.add_argument(
        "--folder", type=Path, required=True, help="folder of the run, for example runs/demo"
    )
    add_listing_options(command)
    command.set_defaults(command=unban)


def unban(options: argparse.Namespace) -> int:
    """End the ban of a device.

    A running coordinator reads the list of bans once a second. A stopped coordinator reads the list at its start.
    """
    from protofleet.coordinator.devices.bans import bans_in, describe_ban, lift
    from protofleet.protocol.settings.reader import SettingsError

    folder = options.folder / "coordinator"
    if not folder.is_dir():
        raise SettingsError(
            f"{options.folder} is no folder of a run: there is no {folder}; name a run such as runs/demo"
        )
    listing, banned = Listing.of(options), bans_in(folder)
    if not options.name:
        lines = [f"{name}: {describe_ban(ban)}" for name, ban in banned.items()]
        listing.line("\n".join(lines) or f"no device is banned in {options.folder}")
        listing.end(
            {"banned": {name: {"until": ban.until, "times": ban.times} for name, ban in banned.items()}}
        )
        return 0
    if options.name not in banned:
        known = ", ".join(banned) or "none"
        raise SettingsError(f"{options.name} is not banned in {options.folder}; banned: {known}")
    lift(folder, options.name)
    listing.line(f"{options.name} is no longer banned; the coordinator accepts it again after its next hello")
    listing.end({"unbanned": options.name})
    return 0


def add_go_on(commands: Subparsers) -> None:
    command = commands.add_parser(
        "go-on", help="continue a run from an older copy of its coordinator's folder"
    )
    command.add_argument(
        "folder", type=Path, help="the run's folder, such as runs/demo; stop its coordinator first"
    )
    command.add_argument(
        "--from-round", type=ROUND, required=True, metavar="N",
        help="the first round that no device has answered; this round starts from the state of the copy, and the "
        "results of the rounds since the copy are lost",
    )  # fmt: skip
    command.set_defaults(command=go_on)


def go_on(options: argparse.Namespace) -> int:
    from protofleet.coordinator.moving.place import CoordinatorPlace, demand_here
    from protofleet.coordinator.spool.older_copies import go_on_from

    run = options.folder.absolute()
    demand_here(CoordinatorPlace(run.parent, run.name))
    go_on_from(options.folder / "coordinator", options.from_round)
    print(f"{options.folder} continues in round {options.from_round} with the state of this copy")
    return 0
