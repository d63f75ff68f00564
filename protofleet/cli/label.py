"""Implement `protofleet label`, which assigns groups and labels to the devices of a queue of runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from protofleet.cli.operator_option import add_service_options, ask_service
from protofleet.protocol.user_error import FAILED
from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options


def add_label(commands: Subparsers) -> None:
    label = commands.add_parser("label", help="assign a group and labels to a device of a queue of runs")
    label.add_argument("device", nargs="?", default="", help="name of the device (default: list all devices)")
    label.add_argument(
        "labels", nargs="*", metavar="KEY=VALUE", help="set a label; `KEY-` removes the label of this key"
    )
    label.add_argument(
        "--group", metavar="GROUP", help='put the device into this group; "" removes it from its group'
    )
    add_service_options(label)
    add_listing_options(label)
    label.set_defaults(command=_label)


def _label(options: argparse.Namespace) -> int:
    from protofleet.protocol.settings.reader import SettingsError

    listing = Listing.of(options)
    if options.group is not None and not options.device:
        raise SettingsError("--group names no device; name one: protofleet label DEVICE --group GROUP")
    if options.labels or options.group is not None:
        request = {
            "verb": "label",
            "run": "",
            "device": options.device,
            "group": options.group,
            "labels": labels_in(options.labels),
        }
        response = ask_service(options, request)
        done = response["verdict"] == "done"
        listing.line(response["words"], wrong=not done)
        listing.end(response)
        return 0 if done else FAILED
    response = ask_service(options, {"verb": "labels", "run": ""})
    if response["verdict"] != "done":
        listing.line(response["words"], wrong=True)
        listing.end(response)
        return FAILED
    return _list(listing, response, options.device)


def labels_in(texts: Sequence[str]) -> dict[str, str]:
    """Return the new value of each label; "" removes the label."""
    from protofleet.protocol.settings.reader import SettingsError

    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals and text.endswith("-"):
            key, value = text[:-1], ""
        elif not value:
            raise SettingsError(f"{text!r} is no label; set one with KEY=VALUE, or remove one with KEY-")
        found[key] = value
    return found


def _list(listing: Listing, response: dict[str, Any], device: str) -> int:
    from protofleet.coordinator.devices.labels import DeviceLabels

    shown = [one for one in response["devices"] if device in ("", one["device"])]
    width = max((len(one["device"]) for one in shown), default=0)
    for one in shown:
        words = DeviceLabels(one["group"], one["labels"]).words()
        listing.line(f"{one['device']:{width}}  {words}{'' if one['enrolled'] else '; not enrolled'}")
    if device and not shown:
        listing.line(f"{device} is not enrolled; `protofleet label` lists the devices", wrong=True)
    elif not shown:
        listing.line("no device is enrolled")
    listing.end({**response, "devices": shown})
    return FAILED if device and not shown else 0
