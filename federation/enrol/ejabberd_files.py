"""Write the files of an ejabberd node into the folder of its enrolled files.

The settings are written once, because the operator may change them. The rules are written each time, because a
revocation changes them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from protofleet.federation.brokers import ejabberd
from protofleet.federation.brokers.ejabberd import RULES_FILE, SETTINGS_FILE
from protofleet.federation.enrol import lifecycle
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.mosquitto_conf import check_user, give_files, user_exists
from protofleet.protocol.security.keyfiles import write_file
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import COORDINATOR

USER: Final = "ejabberd"  # The user of the packages of Debian.
PORT: Final = 8883
EVERYWHERE: Final = "0.0.0.0"
OF_MOSQUITTO: Final = ("plain_port", "devices")
CLIENTS: Final = ("device", "operator", COORDINATOR)


def is_ejabberd(folder: Path) -> bool:
    """Return whether the broker of this folder is a node of ejabberd."""
    return (folder / SETTINGS_FILE).exists()


def demand_files(o: argparse.Namespace, authority: Authority, folder: Path) -> None:
    """Raise SettingsError, before any file is written, if the options or the enrolled names do not fit ejabberd."""
    if given := [f"--{key.replace('_', '-')}" for key in OF_MOSQUITTO if getattr(o, key) is not None]:
        raise SettingsError(f"{', '.join(given)} is for a mosquitto.conf; leave it out with --kind ejabberd")
    if is_ejabberd(folder) and (o.port is not None or o.listen is not None):
        raise SettingsError(
            f"{folder / SETTINGS_FILE} exists; edit its port and its address there, or move this file away and run "
            "the command again"
        )
    if o.user:
        check_user(o.user)
    entries = authority.register.current_entries(authority.now())
    ejabberd.demand_lower_case(entry.name for entry in entries if entry.part in CLIENTS)


def write_files(o: argparse.Namespace, authority: Authority, folder: Path) -> None:
    """Write the rules, and the settings if there are none."""
    new = not is_ejabberd(folder)
    if new:
        port = PORT if o.port is None else o.port
        text = ejabberd.settings(folder, port, o.listen or EVERYWHERE)
        write_file(folder / SETTINGS_FILE, text.encode(), durable=authority.durable)
    revoked = lifecycle.revoked_names(authority, authority.now())
    rules = ejabberd.access_rules(authority.federation, revoked)
    write_file(folder / RULES_FILE, rules.encode(), durable=authority.durable)
    give_files(folder, o.user or (USER if user_exists(USER) else ""))
    print(
        f"settings: {folder / SETTINGS_FILE}{'' if new else ' (not changed)'}; rules: {folder / RULES_FILE}"
    )
    print(
        f"  start this node with `ejabberdctl --config-dir {folder.absolute()} start`, or let it read the rules with "
        "reload_config"
    )
    if os.geteuid() == 0 and not user_exists(USER):
        print(f"  if ejabberd runs as another user, give this user {folder} with --user")
