"""A broker's mosquitto.conf: written once, as its operator may change it. The files that it names change beside it.

Whatever is said of it is looked at before anything is made, so that a mistake leaves nothing half done.
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

from protofleet.deploy.brokers.mosquitto import CONF, Listening, secured_settings
from protofleet.deploy.enrol import disconnect as cutting
from protofleet.deploy.enrol.fleet import write_settings
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import BrokerError

MOSQUITTO: Final = "mosquitto"  # whom Mosquitto becomes by itself
OPTIONS: Final = {"port": "port", "listen": "host", "plain_port": "plain_port", "user": "user"}


def said(o: argparse.Namespace) -> dict[str, Any]:
    """What was said of it, by the fields of Listening."""
    return {name: value for key, name in OPTIONS.items() if (value := getattr(o, key)) is not None}


def flags(o: argparse.Namespace) -> str:
    return ", ".join(f"--{key.replace('_', '-')}" for key in OPTIONS if getattr(o, key) is not None)


def wanted(o: argparse.Namespace, folder: Path) -> Listening | None:
    """What is to be written; None where it stays as it is."""
    given, path = said(o), folder / CONF
    if user := given.get("user"):
        _demand_user(user)
    if not path.exists():
        return replace(Listening(user=_default_user()), **given)
    before = written(folder)
    if given and before is None:
        raise SettingsError(
            f"{path} is not as it was written for this folder, so {flags(o)} cannot be put into it: change it there, "
            "or move it away and say this again"
        )
    after = replace(before, **given) if before else None
    return after if after != before else None


def written(folder: Path) -> Listening | None:
    """What its mosquitto.conf was written from; None where somebody has changed it."""
    text = (folder / CONF).read_text()
    listeners = re.findall(r"^listener (\d+) (\S+)$", text, re.MULTILINE)
    user = re.match(r"user (\S+)\n", text)
    if not 1 <= len(listeners) <= 2:
        return None
    plain = int(listeners[1][0]) if len(listeners) == 2 else 0
    found = Listening(int(listeners[0][0]), listeners[0][1], plain, user[1] if user else "")
    return found if secured_settings(folder, found) == text else None


def tell_broker(o: argparse.Namespace, folder: Path) -> None:
    listening, new = wanted(o, folder), not (folder / CONF).exists()
    if listening is None:
        _reload(folder)
        return
    write_settings(folder, listening)
    _give_to(folder, listening.user)
    again = "" if new else " (start it again: it does not take this at a reload)"
    print(f"broker: mosquitto -c {folder / CONF}{again}")
    if os.geteuid() == 0:
        _tell_user(folder, listening.user)


def _reload(folder: Path) -> None:
    try:
        cutting.reload(folder)
        print(f"the Mosquitto of {folder} reads its files again")
    except BrokerError as error:
        print(error)


def _default_user() -> str:
    """Root's files are for root alone, and Mosquitto that root starts becomes another user."""
    return MOSQUITTO if os.geteuid() == 0 and _known(MOSQUITTO) else ""


def _demand_user(user: str) -> None:
    if not _known(user):
        raise SettingsError(f"there is no user {user} on this machine")
    if os.geteuid() not in (0, pwd.getpwnam(user).pw_uid):
        raise SettingsError(
            f"--user {user} is for a Mosquitto that root starts, and only root can give it its files: say this as "
            "root, or leave --user out and start Mosquitto as the user that you are"
        )


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _give_to(folder: Path, user: str) -> None:
    """Mosquitto reads its files again as the user that it has become."""
    if user and os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                shutil.chown(path, user)


def _tell_user(folder: Path, user: str) -> None:
    if not user:
        print(
            f"  started by root, Mosquitto becomes another user, who cannot read {folder}: when it is installed "
            f"here, say `enrol install` of the broker's approval with --user {MOSQUITTO}"
        )
    elif barred := _barred(folder, user):
        mode = barred.stat().st_mode & 0o777
        print(
            f"  started by root, it becomes {user}, who may not enter {barred} (mode {mode:04o}): let it in "
            f"(chmod o+x {barred}), or move {folder} elsewhere, remove its {CONF} and say `enrol install` there"
        )
    else:
        print(f"  started by root, it becomes {user}, to whom {folder} belongs now")


def _barred(folder: Path, user: str) -> Path | None:
    """The first folder above it that the user may not enter."""
    who = pwd.getpwnam(user)
    groups = os.getgrouplist(user, who.pw_gid)
    for parent in reversed(folder.absolute().parents):
        found = parent.stat()
        bit = 0o100 if found.st_uid == who.pw_uid else 0o010 if found.st_gid in groups else 0o001
        if who.pw_uid and not found.st_mode & bit:
            return parent
    return None
