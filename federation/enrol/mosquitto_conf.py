"""Write a broker's mosquitto.conf only once, because the operator may change the file afterwards.

Later installations replace only the files that mosquitto.conf names. The options are checked before any file is
written, so that an error leaves all files unchanged.
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

from protofleet.federation.brokers.mosquitto import CONF_FILE, DEFAULT_DEVICES, ListenerSettings, tls_settings
from protofleet.federation.enrol import disconnect
from protofleet.federation.enrol.local_federation import write_mosquitto_conf
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import BrokerError

MOSQUITTO: Final = "mosquitto"  # The user to which Mosquitto changes if root starts it.
ROOT: Final = "root"
OPTIONS: Final = {
    "port": "port", "listen": "host", "plain_port": "plain_port", "user": "user", "devices": "devices"
}  # fmt: skip


def given_options(o: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the given options, by the names of the fields of ListenerSettings."""
    return {name: value for key, name in OPTIONS.items() if (value := getattr(o, key)) is not None}


def given_flags(o: argparse.Namespace) -> str:
    return ", ".join(f"--{key.replace('_', '-')}" for key in OPTIONS if getattr(o, key) is not None)


def listener_to_write(o: argparse.Namespace, folder: Path, enrolled: int = 0) -> ListenerSettings | None:
    """Return the listener settings to write, with queues for all enrolled devices; None if nothing changes."""
    given, path = given_options(o), folder / CONF_FILE
    if user := given.get("user"):
        check_user(user)
    if not path.exists():
        room = max(DEFAULT_DEVICES, enrolled)
        return replace(ListenerSettings(user=_default_user(folder), devices=room), **given)
    before = written_listener(folder)
    if given and before is None:
        raise SettingsError(
            f"{path} was edited after it was written, so {given_flags(o)} cannot be put into it: edit the file "
            "yourself, or move it away and run this command again"
        )
    if before and enrolled > before.devices:
        given = {"devices": enrolled} | given
    after = replace(before, **given) if before else None
    return after if after != before else None


def written_listener(folder: Path) -> ListenerSettings | None:
    """Return the listener settings in mosquitto.conf; None if the file was edited after we wrote it."""
    text = (folder / CONF_FILE).read_text()
    listeners = re.findall(r"^listener (\d+) (\S+)$", text, re.MULTILINE)
    user = re.match(r"user (\S+)\n", text)
    if not 1 <= len(listeners) <= 2:
        return None
    plain = int(listeners[1][0]) if len(listeners) == 2 else 0
    room = re.search(r"^# Queues for (\d{1,7}) devices\.$", text, re.MULTILINE)
    if room is None:
        return None
    found = ListenerSettings(
        int(listeners[0][0]), listeners[0][1], plain, user[1] if user else "", devices=int(room[1])
    )
    return found if tls_settings(folder, found) == text else None


def write_conf(o: argparse.Namespace, folder: Path, enrolled: int = 0) -> None:
    listener, new = listener_to_write(o, folder, enrolled), not (folder / CONF_FILE).exists()
    if listener is None:
        _reload(folder)
        return
    write_mosquitto_conf(folder, listener)
    give_files(folder, listener.user)
    restart = "" if new else " (restart Mosquitto: a reload does not change its listeners)"
    print(f"broker: mosquitto -c {folder / CONF_FILE}{restart}")
    if os.geteuid() == 0:
        _explain_access(folder, listener.user)


def _reload(folder: Path) -> None:
    try:
        disconnect.reload(folder)
        print(f"the Mosquitto of {folder} has reloaded its files")
    except BrokerError as error:
        print(error)


def _default_user(folder: Path) -> str:
    """Return the user for mosquitto.conf if the options name no user; "" if this process is not root.

    If root starts Mosquitto and mosquitto.conf names no user, Mosquitto changes to the user mosquitto. If this user
    does not exist or cannot enter the folder, Mosquitto would fail. In these cases, return root.
    """
    if os.geteuid() != 0:
        return ""
    return MOSQUITTO if user_exists(MOSQUITTO) and not _first_closed_folder(folder, MOSQUITTO) else ROOT


def check_user(user: str) -> None:
    if not user_exists(user):
        raise SettingsError(f"there is no user {user} on this machine")
    if os.geteuid() not in (0, pwd.getpwnam(user).pw_uid):
        raise SettingsError(
            f"--user is {user}, but only root can give the broker's files to this user: run this command as root, or "
            "leave out --user and start the broker as the current user"
        )


def user_exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def give_files(folder: Path, user: str) -> None:
    """Give the files to the user to which the broker changes, because a reload reads the files as this user."""
    if user and os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                shutil.chown(path, user)


def _explain_access(folder: Path, user: str) -> None:
    if user == ROOT:
        print(f"  if root starts Mosquitto, Mosquitto keeps running as root, {_reason_to_stay_root(folder)}")
    elif not user:
        print(
            f"  if root starts Mosquitto, Mosquitto changes to another user, who cannot read {folder}. "
            f"Install Mosquitto on this machine, then install the broker's approval again with --user {MOSQUITTO}"
        )
    elif closed := _first_closed_folder(folder, user):
        mode = closed.stat().st_mode & 0o777
        print(
            f"  if root starts Mosquitto, Mosquitto changes to the user {user}, who may not enter {closed} (mode "
            f"{mode:04o}): give this permission (chmod o+x {closed}), or move {folder} to another place, remove "
            f"{CONF_FILE} from it and run `enrol install` there"
        )
    else:
        print(f"  if root starts Mosquitto, Mosquitto changes to the user {user}, who owns {folder} now")


def _reason_to_stay_root(folder: Path) -> str:
    again = f"to use another user, remove {folder / CONF_FILE} and install the broker's approval again"
    if not user_exists(MOSQUITTO):
        return f"because there is no user {MOSQUITTO} on this machine; {again} when this user exists"
    if (closed := _first_closed_folder(folder, MOSQUITTO)) is None:
        return "because mosquitto.conf names root"
    mode = closed.stat().st_mode & 0o777
    return (
        f"because {MOSQUITTO} may not enter {closed} (mode {mode:04o}); {again} when this user may enter the folder "
        f"(chmod o+x {closed})"
    )


def _first_closed_folder(folder: Path, user: str) -> Path | None:
    """Return the topmost parent folder that the user may not enter, or None.

    Folders that do not exist yet are not checked, because all users will be able to enter them.
    """
    account = pwd.getpwnam(user)
    groups = os.getgrouplist(user, account.pw_gid)
    for parent in reversed([parent for parent in folder.absolute().parents if parent.exists()]):
        found = parent.stat()
        bit = 0o100 if found.st_uid == account.pw_uid else 0o010 if found.st_gid in groups else 0o001
        if account.pw_uid and not found.st_mode & bit:
            return parent
    return None
