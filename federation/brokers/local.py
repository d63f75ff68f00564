"""Run a broker of a run: Mosquitto if it is installed, else the embedded broker of the package iotcore.

The broker listens on the loopback and accepts all clients. If `mutual_tls` is given, the broker accepts only clients
with a certificate. Only then may the broker listen on another address, which other machines reach. It stores no
messages on the disk, and ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.federation.brokers.mosquitto import CONF_FILE, PLAIN_SETTINGS, ListenerSettings, tls_settings
from protofleet.federation.brokers.ports import LOOPBACK, free_port
from protofleet.protocol.transport.address import (
    LARGEST_BLOCK,
    BrokerAddress,
    BrokerError,
    TlsFiles,
    preflight,
)
from protofleet.runtime import children
from protofleet.runtime.installation.extras import install_hint

START_SECONDS: Final = 15.0
STOP_SECONDS: Final = 5.0
# A start can fail, because another process may take the free port before the broker does.
START_ATTEMPTS: Final = 5
KINDS: Final = ("auto", "mosquitto", "embedded")
# These folders are often not on a user's PATH.
SBIN_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
INSTALL_HINT: Final = (
    f"install Mosquitto (apt-get install mosquitto) or the embedded broker ({install_hint('broker')})"
)

# A shell starts the broker, and ends it when the pipe on the shell's standard input closes. The pipe closes when this
# process ends, even if this process is killed.
GUARD: Final = """\
exec 3<&0
"$@" </dev/null 3<&- & broker=$!
{ cat <&3 >/dev/null; kill "$broker"; } 2>/dev/null & watch=$!
wait "$broker"; code=$?
kill "$watch" 2>/dev/null  # else it would later kill another process that has got this process id
exit "$code"
"""

# The broker keeps up to 4 segments of 8 MiB for each subscription, and never frees them. If more frames wait for a
# client, the client misses the oldest frames and must request them again.
EMBEDDED_SETTINGS: Final = """\
id = 0

[router]
id = 0
max_connections = 1000
max_outgoing_packet_count = 200
max_segment_size = 8388608
max_segment_count = 4

[v5.1]
name = "loopback"
listen = "{host}:{port}"
next_connection_delay_ms = 0

[v5.1.connections]
connection_timeout_ms = 5000
max_payload_size = 2097152
max_inflight_count = 100
dynamic_filters = true
"""


@dataclass(frozen=True, slots=True)
class BrokerProgram:
    kind: str
    command: tuple[str, ...]  # The command, to which the path of the settings file is added.
    description: str
    settings: str
    # The broker writes this text into its log when it has begun to listen. The text proves that this broker, and no
    # other program, uses the port.
    ready: str


def find_broker(kind: str = "auto") -> BrokerProgram:
    if kind not in KINDS:
        raise BrokerError(f"the broker kind {kind!r} does not exist; the kinds are {', '.join(KINDS)}")
    for name, find in (("mosquitto", _mosquitto), ("embedded", _embedded)):
        if kind in ("auto", name) and (program := find()) is not None:
            return program
    raise BrokerError(f"there is no broker of kind {kind} on this machine; {INSTALL_HINT}")


def _mosquitto() -> BrokerProgram | None:
    path = shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(SBIN_FOLDERS))
    if path is None:
        return None
    help_text = subprocess.run([path, "-h"], capture_output=True, text=True, timeout=STOP_SECONDS).stdout
    version = re.search(r"version (\S+)", help_text)
    description = f"mosquitto {version[1] if version else '?'} (system)"
    return BrokerProgram("mosquitto", (path, "-c"), description, PLAIN_SETTINGS, " running")


def _embedded() -> BrokerProgram | None:
    if importlib.util.find_spec("iotcore") is None:
        return None
    description = f"embedded iotcore {importlib.metadata.version('iotcore')} (rumqttd)"
    command = tuple(children.command("protofleet.federation.brokers.embedded"))
    return BrokerProgram("embedded", command, description, EMBEDDED_SETTINGS, "broker listening on")


@dataclass(frozen=True, slots=True)
class MutualTls:
    """The TLS files of a broker that demands client certificates and has access rules."""

    folder: Path
    # The TLS files of a client that may connect; they become a part of `LocalBroker.address`.
    client: TlsFiles


class LocalBroker:
    """A broker that runs during the `with` block.

    `extra_lines` are added to mosquitto.conf, for tests and benchmarks.
    """

    def __init__(
        self,
        folder: Path,
        kind: str = "auto",
        port: int = 0,
        sys_seconds: int = 10,
        extra_lines: Sequence[str] = (),
        mutual_tls: MutualTls | None = None,
        host: str = LOOPBACK,
    ) -> None:
        self._program, self._mutual_tls = find_broker(kind), mutual_tls
        if (extra_lines or mutual_tls) and self._program.kind != "mosquitto":
            wanted = f"the lines {list(extra_lines)}" if extra_lines else "certificates and access rules"
            raise BrokerError(f"only Mosquitto supports {wanted}, but this broker is {self.describe()}")
        if host != LOOPBACK and mutual_tls is None:
            raise BrokerError(
                f"a broker that other machines reach on {host} must use TLS, but this broker is {self.describe()}; "
                f'{"use" if self._program.kind == "mosquitto" else "install Mosquitto, and use"} broker.tls = "on"'
            )
        self._folder, self._port, self._sys_seconds, self._host = folder, port, sys_seconds, host
        self.extra_lines = extra_lines  # The extra lines of mosquitto.conf for the next start.
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0

    def describe(self) -> str:
        return self._program.description + (", TLS 1.3 with client certificates" if self._mutual_tls else "")

    @property
    def address(self) -> BrokerAddress:
        """Return the broker's address, with the client's TLS files if `mutual_tls` is given."""
        tls = self._mutual_tls.client if self._mutual_tls else None
        # No connection on this machine is slow, so blocks may be large.
        return BrokerAddress(self._host, self._port, tls, block_bytes=LARGEST_BLOCK)

    @property
    def process_group(self) -> int:
        """Return the id of the broker's process group; 0 while the broker does not run."""
        return self._process.pid if self._process is not None else 0

    @property
    def log(self) -> Path:
        return self._folder / "broker.log"

    def __enter__(self) -> LocalBroker:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker, and wait until it answers MQTT. Later starts use the same port."""
        self._folder.mkdir(parents=True, exist_ok=True)
        fixed_port = self._port
        for attempt in range(1, START_ATTEMPTS + 1):
            self._port = fixed_port or _free_port(self._host)
            _check_port_free(self._host, self._port)
            self._launch()
            try:
                return self._wait_until_ready()
            except BrokerError:
                self.stop()
                if fixed_port or attempt == START_ATTEMPTS:
                    raise

    def ended(self) -> str:
        """Return the signal or the exit code with which the broker has ended; "" while it runs."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return ""
        return f"killed by signal {code - 128}" if code > 128 else f"exit code {code}: {self._reason()}"

    def restart(self) -> None:
        """Start a broker again after it has ended by itself; use the same port, so that its clients can reconnect."""
        self.kill()
        self.start()

    def stop(self) -> None:
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()  # After this, the shell ends the broker.
        children.wait([self._process], STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the broker without a shutdown, as a power failure would."""
        if (process := self._process) is None:
            return
        self._process = None
        with process, contextlib.suppress(ProcessLookupError):  # At its end, this block waits for the shell.
            os.killpg(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + STOP_SECONDS
        # The shell may end before the broker, so this loop waits for the broker.
        while _listens(self.address) and time.monotonic() < deadline:
            time.sleep(0.005)

    def _launch(self) -> None:
        settings = self._settings()
        with self.log.open("ab") as log:
            self._log_offset = log.tell()
            self._process = subprocess.Popen(
                ["sh", "-c", GUARD, "broker", *self._program.command, str(settings.absolute())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C must reach only this process, because the broker has to end last.
                start_new_session=True,
            )

    def _settings(self) -> Path:
        """Write the settings file; each start writes it again, because the port may have changed."""
        # If root starts Mosquitto and the settings name no user, Mosquitto changes to a user of its own. This user
        # may not be allowed to read these files.
        user = "root" if os.geteuid() == 0 else ""
        lines = "".join(f"{line}\n" for line in self.extra_lines)
        if self._mutual_tls is not None:
            path = self._mutual_tls.folder / CONF_FILE
            listener = ListenerSettings(
                self._port, self._host, user=user, persistence=False, sys_seconds=self._sys_seconds
            )
            path.write_text(tls_settings(self._mutual_tls.folder, listener) + lines)
            return path
        text = self._program.settings.format(host=self._host, port=self._port, sys_seconds=self._sys_seconds)
        if self._program.kind != "mosquitto":
            path = self._folder / "broker.toml"
        else:
            path = self._folder / "broker.conf"
            text += f"user {user}\n" if user else ""
        path.write_text(text + lines)
        return path

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        problem: str | None = "it does not listen"
        while self._program.ready not in self._log_text() or (
            problem := preflight(self.address, seconds=1.0)
        ):
            if self._process is None or self._process.poll() is not None:
                raise BrokerError(f"{self.describe()} did not start: {self._reason()}; see {self.log}")
            if time.monotonic() > deadline:
                raise BrokerError(f"{self.describe()} does not answer ({problem}); see {self.log}")
            time.sleep(0.02)

    def _log_text(self) -> str:
        """Return the part of the log since the last start."""
        return "\n".join(children.last_lines(self.log, self._log_offset))

    def _reason(self) -> str:
        lines = [line for line in self._log_text().splitlines() if "terminating" not in line]
        return " / ".join(lines[-2:]) or "its log is empty"


def _listens(address: BrokerAddress) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((address.host, address.port)) == 0


def _free_port(host: str) -> int:
    try:
        return free_port(host)
    except OSError as error:
        raise BrokerError(
            f"no broker can listen on {host} ({error.strerror}); name an address of this machine"
        ) from None


def _check_port_free(host: str, port: int) -> None:
    with socket.socket() as sock:
        # With this option, the check accepts a port in the state TIME_WAIT as free.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise BrokerError(
                    f"port {port} cannot be used ({error.strerror}); choose another port"
                ) from None
            advice = "stop the program that listens there, or choose another port; 0 means any free port"
            raise BrokerError(f"port {port} on {host} is taken; {advice}") from None
