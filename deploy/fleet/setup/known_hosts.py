"""Ask hosts for their ssh keys, let a person compare the fingerprints, and store the confirmed keys.

Keys that are known already need no confirmation.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.settings import Fleet, Host
from protofleet.deploy.fleet.ssh import run_program
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError

SECONDS: Final = 10
KEY_TYPE: Final = "ed25519"

# The function gets a host's name and the fingerprint of the host's key. It returns True if the key is confirmed.
Confirm = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class HostKey:
    line: str  # The line of this key in a known_hosts file.
    fingerprint: str


def believe(fleet: Fleet, hosts: dict[str, Host], confirm: Confirm) -> dict[str, str]:
    """Add the keys that `confirm` accepts to the fleet's known_hosts; return a message for each host."""
    if not fleet.known_hosts:
        words = 'without this setting, ssh uses your own file of known hosts; add known_hosts = "known_hosts"'
        raise SettingsError(f"known_hosts in the fleet's file is empty; {words}")
    path = Path(fleet.known_hosts)
    shown: dict[str, HostKey | str] = {}
    for name, host in hosts.items():
        try:
            shown[name] = ask_for_key(host)
        except RunError as error:
            shown[name] = str(error)
    return {
        name: found if isinstance(found, str) else _believe(path, name, hosts[name], found, confirm)
        for name, found in shown.items()
    }


def _believe(path: Path, name: str, host: Host, key: HostKey, confirm: Confirm) -> str:
    held = _held(path, host)
    if key.line.split()[-1] in held.split():
        return f"{_place(host)} is known"
    shown = f"{key.fingerprint}{' (the known key is another key: was the machine replaced?)' if held else ''}"
    if not confirm(name, shown):
        return f"{_place(host)} was not added: nobody has confirmed its fingerprint"
    if held:
        _run(["ssh-keygen", "-R", _place(host), "-f", str(path)])
    with path.open("a") as file:
        file.write(key.line + "\n")
    return f"{_place(host)} is known now"


def ask_for_key(host: Host) -> HostKey:
    command = ["ssh-keyscan", "-T", str(SECONDS), "-t", KEY_TYPE]
    found = _run([*command, *(["-p", str(host.port)] if host.port else []), host.address])
    # Only lines that begin with the address of this host contain its key. Other lines are ignored, such as comments
    # with the host's banner.
    wanted = _place(host).lower()
    lines = [
        line for line in found.split("\n") if line.split(" ")[0].lower() == wanted and line.isprintable()
    ]
    if not lines:
        way_out = "check that the host is switched on, that sshd runs on it, and that the port is right"
        raise RunError(
            f"{_place(host)} has sent no host key of the type {KEY_TYPE} within {SECONDS} s; {way_out}"
        )
    shown = _run(["ssh-keygen", "-l", "-f", "-"], lines[0] + "\n")
    return HostKey(lines[0], shown.split()[1])


def _held(path: Path, host: Host) -> str:
    return _run(["ssh-keygen", "-F", _place(host), "-f", str(path)]) if path.exists() else ""


def _place(host: Host) -> str:
    """Return the address of the host in the form of a known_hosts file: `ADDRESS` or `[ADDRESS]:PORT`."""
    return f"[{host.address}]:{host.port}" if host.port not in (0, 22) else host.address


def _run(command: list[str], stdin: str = "") -> str:
    try:
        return run_program(command, stdin, 60.0).out
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} has not ended within 60 s; check whether the network is up") from None
