"""The option `--operator`, with which a command goes to a coordinator through the broker."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
