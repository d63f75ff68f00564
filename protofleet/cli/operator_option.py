"""The options that name the coordinator of a command: on this machine, or behind a broker with `--operator`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from protofleet.cli.queue_socket import ask_queue

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]


def add_operator_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--operator", type=Path, metavar="FILE",
        help="send the command through the broker, with the settings of an enrolled operator",
    )  # fmt: skip


def through_broker(options: argparse.Namespace) -> Ask | None:
    """Return a function that sends a request through the broker, or None without the option."""
    if options.operator is None:
        return None
    from protofleet.federation.remote.client import ask_coordinator
    from protofleet.federation.remote.settings import load_operator_settings

    settings = load_operator_settings(options.operator)
    return lambda request: ask_coordinator(settings, {"reason": "", **request})


def name_of(run: Path) -> str:
    """Return the name of a run for a coordinator elsewhere; raise SettingsError if it is the path of a folder."""
    from protofleet.protocol.settings.reader import SettingsError

    if len(run.parts) > 1:
        raise SettingsError(
            f"{run} is a path, and with --operator a run is named by its name; write {run.name}, or leave out "
            "--operator for a coordinator on this machine"
        )
    return run.name


def add_service_options(command: argparse.ArgumentParser) -> None:
    add_operator_option(command)
    command.add_argument(
        "--service", type=Path, metavar="FOLDER", help="the `folder` in the coordinator's file (default: runs)",
    )  # fmt: skip


def ask_service(options: argparse.Namespace, request: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request to the coordinator that the options name, and return its response."""
    if options.service is not None and options.operator is not None:
        from protofleet.protocol.settings.reader import SettingsError

        raise SettingsError(
            "--service names a coordinator on this machine, and --operator sends the command through the broker; "
            "leave one of them out"
        )
    send = through_broker(options)
    return send(request) if send else ask_queue(options.service or Path("runs"), request)
