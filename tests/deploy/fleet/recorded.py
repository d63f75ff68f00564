"""A recorded board behind `Ssh`: it keeps every command line with its stdin, and answers from facts.

Each step of remote.sh changes the facts, so that a second plan finds what the first plan has changed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.device.scripts import FACTS_SCRIPT, REMOTE_SCRIPT
from protofleet.deploy.fleet.settings import Fleet, Host
from protofleet.deploy.fleet.ssh import AS_ROOT, CommandResult, Ssh
from protofleet.edge_client.host.status_file import Status
from protofleet.federation.enrol import key_folder
from protofleet.protocol.security.signed_settings import SETTINGS
from protofleet.protocol.security.statements import Reader, from_armour, unverified_body

SHELL: Final = f"exec {AS_ROOT} sh -s -- "
SCRIPTS: Final = {FACTS_SCRIPT: "facts.sh", REMOTE_SCRIPT: "remote.sh"}
LISTS: Final = (
    "tool",
    "complete",
    "blocked",
    "served",
    "temperature",
    "rolled_back",
)  # a value for each line
FIT: Final = {
    "arch": "aarch64", "uid": "0", "tool": "rsync\npython3\nsha256sum\nssh-keygen", "verifies": "yes",
    "python": "3.10.12", "venv": "yes",
    "systemd": "249", "systemd_state": "running", "clock_synced": "yes", "disk_free": "80000000000",
    "state_free": "80000000000", "storage": "/dev/nvme0n1p1", "ram": "6000000000", "ram_free": "5000000000",
    "swap": "0",
}  # fmt: skip


@dataclass
class RecordedBoard:
    """A board that keeps its calls.

    Each of `lines` is a call as `program arguments`; the first argument is the script or the files of the folder.
    """

    folder: Path  # the folder for the board's keys
    facts: dict[str, str] = field(default_factory=lambda: dict(FIT))
    fails: Mapping[str, str] = field(default_factory=dict)  # step -> the message with which it fails
    connected: bool = True
    doing: Mapping[str, object] = field(default_factory=dict)  # the fields of its status that differ
    commands: list[list[str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    incoming: dict[str, bytes] = field(default_factory=dict)

    def run(self, command: Sequence[str], stdin: str, seconds: float) -> CommandResult:
        self.commands.append(list(command))
        if command[0] == "rsync":
            files = {path.name: path.read_bytes() for path in Path(command[-2]).iterdir()}
            self.lines.append(f"rsync {','.join(sorted(files))} {command[-1]}")
            self.incoming = files if command[-1].endswith("/incoming/") else self.incoming
            if command[-1].endswith("/records/"):
                lines = "".join(f"{digest(data)}  {name}\n" for name, data in sorted(files.items()))
                self.facts["lists"] = digest(lines.encode())
            return CommandResult(0, "", "")
        if command[3:5] == ["-O", "exit"]:
            return CommandResult(0, "", "")
        assert command[-1].startswith(SHELL), command
        (script,) = (name for text, name in SCRIPTS.items() if stdin.endswith(text))
        self.lines.append(f"{script} {command[-1].removeprefix(SHELL)}")
        step, *arguments = shlex.split(command[-1].removeprefix(SHELL))
        if step in self.fails:
            return CommandResult(1, "", self.fails[step] + "\n")
        return CommandResult(0, self._answer(step, arguments), "")

    def _answer(self, step: str, arguments: list[str]) -> str:
        match step:
            case "quick" | "deep":
                return self._facts()
            case "prepare":
                self.facts["user"] = "protofleet"
            case "pin":
                self.facts |= {
                    "pinned": digest(self.incoming["roots"]),
                    "held_roots": one_line(self.incoming["roots"]),
                    "signers": digest(self.incoming["allowed_signers"]),
                }
            case "build":
                self.facts["complete"] = arguments[0]
            case "request":
                made = key_folder.make_request(
                    self.folder, arguments[2], arguments[1], (), new_keys=False, durable=False
                )
                assert made[0].name == arguments[1]
                return (self.folder / "pending" / "request").read_text()
            case "enrol":
                self._enrol(arguments[1])
            case "install_keys":
                self.facts |= {
                    "tls": digest(self.incoming["tls.crt"]),
                    "roots": digest(self.incoming["roots"]),
                }
                self.facts["lists"] = digest(self.incoming["crl.pem"] + self.incoming["acl"])
                self.facts["held_crl"] = base64.b64encode(self.incoming["crl.pem"]).decode()
            case "switch":
                self._switch(arguments[0])
            case "start":
                self._start()
            case "stop":
                self.facts |= {"ActiveState": "inactive", "agent": "0"}
            case "state":
                keys = ("ActiveState", "SubState", "NRestarts", "agent", "status", "answers")
                return "".join(f"{key}={self.facts.get(key, '')}\0" for key in keys)
            case "record":
                if "good" in self.facts:
                    self.facts["previous"] = self.facts["good"]
                    self.facts["previous_settings"] = self.facts["good_settings"]
                self.facts |= {"good": arguments[0], "good_settings": self.facts["settings"]}
            case "block":
                self.facts["blocked"] = arguments[0]
                self.facts |= {"rolled_back": arguments[0]} if arguments[1:] == ["by hand"] else {}
            case "erase_keys":
                shutil.rmtree(self.folder, ignore_errors=True)
                self.facts |= {"tls": "", "ActiveState": "inactive"}
        return ""

    def _facts(self) -> str:
        told = self.facts | {"now": str(int(time.time())), "end": "yes"}
        return "".join(
            f"{key}={one}\0"
            for key, value in told.items()
            for one in (value.split("\n") if key in LISTS else [value])
        )

    def _enrol(self, fingerprint: str) -> None:
        lines = self.incoming["approval"]
        path = self.folder / "approval"
        path.write_bytes(lines)
        data, confirm = key_folder.read_approval_file(path), key_folder.expect_fingerprint(fingerprint)
        current = key_folder.install(self.folder, data, confirm, time.time(), durable=False).folder
        names = {
            "tls": "tls.crt",
            "roots": "roots",
            "coordinator": "coordinator.record",
            "revoked": "revoked",
        }
        found = {key: current / name for key, name in names.items() if (current / name).exists()}
        self.facts |= {key: digest(path.read_bytes()) for key, path in found.items()}
        self.facts["held_revoked"] = one_line((current / "revoked").read_bytes())

    def _switch(self, release: str) -> None:
        self.facts["release"] = release
        if "settings" in self.incoming:
            self.facts["settings"] = one_line(self.incoming["settings"])
        if "unit" in self.incoming:
            self.facts["unit"] = digest(self.incoming["unit"])
            mark = self.incoming["unit"].decode().partition("PROTOFLEET_UNIT=")[2][:16]
            self.facts["running_unit"] = mark

    def _start(self) -> None:
        pid = int(self.facts.get("agent", "0")) + 1
        status = asdict(
            Status(pid, 1, 0, "0.1.0", self._version(), self.connected, self.connected, round=3, accepted=9)
        ) | dict(self.doing)
        self.facts |= {
            "ActiveState": "active", "SubState": "running", "NRestarts": "0", "UnitFileState": "enabled",
            "agent": str(pid), "running": self.facts["release"], "status": json.dumps(status),
        }  # fmt: skip

    def _version(self) -> int:
        """Return the version of the signed settings in use."""
        statement = from_armour(SETTINGS, self.facts["settings"].encode())
        fields = Reader(SETTINGS, unverified_body(SETTINGS, statement))
        fields.text(), fields.text()
        return fields.number()


def one_line(text: bytes) -> str:
    """Return a text of several lines as facts.sh prints it, on one line."""
    return text.decode().replace("\n", " ").strip()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def recording(boards: Mapping[str, RecordedBoard], folder: Path):
    """Return the connect function that `commands.run` takes, which records in place of connecting."""

    @contextmanager
    def connect(fleet: Fleet, hosts: dict[str, Host]) -> Iterator[dict[str, Ssh]]:
        yield {name: Ssh(name, host, fleet, folder, boards[name].run) for name, host in hosts.items()}

    return connect
