"""A broker's mosquitto.conf: written once, for its operator may change it; the files that it names are renewed.

The options are checked before anything is written, so that a mistake leaves nothing half done.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from protofleet.deploy.brokers.mosquitto import CONF, ListenerSettings, secured_settings
from protofleet.deploy.enrol import disconnect
from protofleet.deploy.enrol.local_federation import write_mosquitto_conf
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import BrokerError

MOSQUITTO: Final = "mosquitto"  # the user that Mosquitto becomes when root starts it
OPTIONS: Final = {"port": "port", "listen": "host", "plain_port": "plain_port", "user": "user"}


def given_options(o: argparse.Namespace) -> dict[str, Any]:
    """Options that were given, by the fields of Listening."""
    return {name: value for key, name in OPTIONS.items() if (value := getattr(o, key)) is not None}


def given_flags(o: argparse.Namespace) -> str:
    return ", ".join(f"--{key.replace('_', '-')}" for key in OPTIONS if getattr(o, key) is not None)


def wanted_listener(o: argparse.Namespace, folder: Path) -> ListenerSettings | None:
    """The settings to be written; None where the file stays as it is."""
    given, path = given_options(o), folder / CONF
    if user := given.get("user"):
        _check_user(user)
    if not path.exists():
        return replace(ListenerSettings(user=_default_user()), **given)
    before = written_listener(folder)
    if given and before is None:
        raise SettingsError(
            f"{path} is not as it was written for this folder, so {given_flags(o)} cannot be put into it: "
            "change it there, or move it away and run this again"
        )
    after = replace(before, **given) if before else None
    return after if after != before else None


def written_listener(folder: Path) -> ListenerSettings | None:
    """The settings that mosquitto.conf was written from; None where somebody has changed it."""
    text = (folder / CONF).read_text()
    listeners = re.findall(r"^listener (\d+) (\S+)$", text, re.MULTILINE)
    user = re.match(r"user (\S+)\n", text)
    if not 1 <= len(listeners) <= 2:
        return None
    plain = int(listeners[1][0]) if len(listeners) == 2 else 0
    found = ListenerSettings(int(listeners[0][0]), listeners[0][1], plain, user[1] if user else "")
    return found if secured_settings(folder, found) == text else None


def write_conf(o: argparse.Namespace, folder: Path) -> None:
    listener, new = wanted_listener(o, folder), not (folder / CONF).exists()
    if listener is None:
        _reload(folder)
        return
    write_mosquitto_conf(folder, listener)
    _chown(folder, listener.user)
    again = "" if new else " (start it again: it does not take this at a reload)"
    print(f"broker: mosquitto -c {folder / CONF}{again}")
    if os.geteuid() == 0:
        _explain_access(folder, listener.user)


def _reload(folder: Path) -> None:
    try:
        disconnect.reload(folder)
        print(f"the Mosquitto of {folder} reads its files again")
    except BrokerError as error:
        print(error)


def _default_user() -> str:
    """Root's files are for root alone, and Mosquitto that root starts becomes another user."""
    return MOSQUITTO if os.geteuid() == 0 and _user_exists(MOSQUITTO) else ""


def _check_user(user: str) -> None:
    if not _user_exists(user):
        raise SettingsError(f"there is no user {user} on this machine")
    if os.geteuid() not in (0, pwd.getpwnam(user).pw_uid):
        raise SettingsError(
            f"--user {user} is for a Mosquitto that root starts, and only root can give it its files: run this as "
            "root, or leave --user out and start Mosquitto as the user that you are"
        )


def _user_exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _chown(folder: Path, user: str) -> None:
    """Mosquitto reads its files again as the user that it has become."""
    if user and os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                shutil.chown(path, user)


def _explain_access(folder: Path, user: str) -> None:
    if not user:
        print(
            f"  started by root, Mosquitto becomes another user, which cannot read {folder}: when it is installed "
            f"here, run `enrol install` of the broker's approval with --user {MOSQUITTO}"
        )
    elif barred := _barred_folder(folder, user):
        mode = barred.stat().st_mode & 0o777
        print(
            f"  started by root, it becomes {user}, which may not enter {barred} (mode {mode:04o}): let it in "
            f"(chmod o+x {barred}), or move {folder} elsewhere, remove its {CONF} and run `enrol install` there"
        )
    else:
        print(f"  started by root, it becomes {user}, which owns {folder} now")


def _barred_folder(folder: Path, user: str) -> Path | None:
    """The first folder above it that the user may not enter."""
    who = pwd.getpwnam(user)
    groups = os.getgrouplist(user, who.pw_gid)
    for parent in reversed(folder.absolute().parents):
        found = parent.stat()
        bit = 0o100 if found.st_uid == who.pw_uid else 0o010 if found.st_gid in groups else 0o001
        if who.pw_uid and not found.st_mode & bit:
            return parent
    return None
