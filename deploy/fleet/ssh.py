"""Run OpenSSH and rsync with one shared connection for each host, without prompts, and explain each failure."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from protofleet.deploy.fleet.settings import Fleet, Host
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.printable import printable
from protofleet.runtime.command.errors import RunError

CONNECT_SECONDS: Final = 10
CLOSE_SECONDS: Final = 10.0
# The exit code of ssh after its own failure. Other codes come from the remote command.
SSH_FAILED: Final = 255
AS_ROOT: Final = '$([ "$(id -u)" = 0 ] || echo sudo -n)'  # The shell on the host evaluates this text.
LONGEST_SHOWN: Final = 2000  # Largest number of characters of a host's output that are printed.

# Pairs of a text in ssh's output and its explanation for the operator. The first text that is found is used.
EXPLANATIONS: Final = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is not the known key: another machine answers, or "
     "the host was installed again; `protofleet deploy known-hosts {name}` shows the fingerprint and adds the key"),
    ("Host key verification failed", "its host key is not known here; "
     "`protofleet deploy known-hosts` shows its fingerprint and adds the key, or connect once by hand"),
    ("No matching host key", "it offers no key of a type that is known here; `ssh-keyscan {host}` shows its keys"),
    ("Permission denied", "it does not accept our key; put the public key into its authorized_keys (`ssh-copy-id`)"),
    ("Could not resolve hostname", "its name cannot be resolved; correct the host's address in the fleet's file"),
    ("Connection refused", "nothing listens on {port}; is sshd running, is the port right?"),
    ("timed out", "no answer; is the host switched on, does a firewall drop the port?"),
    ("No route to host", "no route to the host; is it switched on and on this network?"),
    ("Network is unreachable", "this machine's network has no route to the host"),
    ("Connection reset", "the host closed the connection before it answered; does its sshd work?"),
    ("Connection closed", "the host closed the connection before it answered; does its sshd work?"),
)  # fmt: skip


class UnreachableError(RunError):
    """The error for a host that cannot be reached. The message gives the reason and a way out."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command. `out` and `err` are unchanged; use `shown` before you print a part of them."""

    code: int
    out: str
    err: str
    source: str = ""  # The command, and the host on which it ran.
    hint: str = ""  # Advice for the operator: the commands with which to look at the host.

    @property
    def last_line(self) -> str:
        """Return the last line that the command printed. Without output, return the exit status and the hint."""
        if text := self.err.strip() or self.out.strip():
            return shown(text.split("\n")[-1])
        return f"{self.source or 'the command'} ended with exit status {self.code} and no output; {self.hint}"


def shown(text: str) -> str:
    """Return a host's output as one line, without characters that could control the operator's terminal."""
    return printable(text.strip())[-LONGEST_SHOWN:]


# The arguments are a command line, its stdin, and the time limit in seconds.
Run: TypeAlias = Callable[[Sequence[str], str, float], CommandResult]


def run_program(command: Sequence[str], stdin: str, seconds: float) -> CommandResult:
    try:
        done = subprocess.run(
            command, input=stdin.encode(), capture_output=True, timeout=seconds, check=False
        )  # The output is read as bytes, because text mode would turn every "\r" into a line break.
    except FileNotFoundError:
        raise RunError(f"the program {command[0]} is missing on this machine; install it") from None
    return CommandResult(
        done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )


class Ssh:
    """The connection to one host. `folder` holds the sockets of this deployment's shared connections."""

    def __init__(self, name: str, host: Host, fleet: Fleet, folder: Path, run: Run = run_program) -> None:
        self.name, self._host, self._run = name, host, run
        self._config = folder / f"{name}.conf"
        self._config.write_text(configuration(host, fleet, folder))
        self._ssh = ["ssh", "-F", str(self._config)]

    def run(self, script: str, *arguments: str, seconds: float = 60.0) -> CommandResult:
        """Run one of our scripts in root's shell on the host; `arguments` are quoted for that shell."""
        remote = f"exec {AS_ROOT} sh -s -- {shlex.join(arguments)}"
        what = f"the step {arguments[0]!r}" if arguments else "a script"
        return self._call([*self._ssh, self._host.address, remote], script, seconds, what)

    def send(
        self, source: Path, target: str, seconds: float = 3600.0, private: bool = False
    ) -> CommandResult:
        """Copy a folder to the host, and remove all other files in the target; no file is ever incomplete.

        An interrupted transfer is resumed. Files are compared by content, because two files of settings that
        were signed in the same second can have the same size and time.
        """
        modes = "D0700,F0600" if private else "D0755,F0644"
        command = ["rsync", "-rtcL", f"--chmod={modes}", "--partial-dir=.rsync-partial", "--delay-updates",
                   "--delete", "-e", shlex.join(self._ssh), f"--rsync-path={AS_ROOT} rsync"]  # fmt: skip
        return self._call(
            [*command, f"{source}/", f"{in_brackets(self._host.address)}:{target}/"],
            "",
            seconds,
            f"rsync to {target}",
        )

    def fetch(self, source: str, target: Path, seconds: float = 3600.0) -> CommandResult:
        """Copy a folder of the host into a folder of this machine; an interrupted transfer is resumed."""
        command = ["rsync", "-rt", "--chmod=D0700,F0600", "--partial-dir=.rsync-partial",
                   "-e", shlex.join(self._ssh), f"--rsync-path={AS_ROOT} rsync"]  # fmt: skip
        place = f"{in_brackets(self._host.address)}:{source}/"
        return self._call([*command, place, f"{target}/"], "", seconds, f"rsync of {source}")

    def close(self) -> None:
        with contextlib.suppress(RunError, subprocess.TimeoutExpired):
            self._run([*self._ssh, "-O", "exit", self._host.address], "", CLOSE_SECONDS)

    def _call(self, command: Sequence[str], stdin: str, seconds: float, what: str) -> CommandResult:
        where = f"{self.name} ({self._host.address})"
        try:
            done = self._run(command, stdin, seconds)
        except subprocess.TimeoutExpired:
            problem = f"{where}: {what} was not finished after {seconds:.0f} s"
            raise UnreachableError(
                f"{problem}; check with `{self._by_hand}` whether the host can be reached"
            ) from None
        result = CommandResult(
            done.code,
            done.out,
            done.err,
            f"{what} on {where}",
            f"look there: `{self._by_hand}`, then `journalctl -n 50` and `df -h`",
        )
        if result.code == SSH_FAILED:
            raise UnreachableError(f"{where}: {self._explain(result)}")
        return result

    @property
    def _by_hand(self) -> str:
        """Return the ssh command with which the operator can log in to the host."""
        host = self._host
        port, key = (["-p", str(host.port)] if host.port else []), (["-i", host.key] if host.key else [])
        return shlex.join(["ssh", *port, *key, f"{host.user}@{host.address}" if host.user else host.address])

    def _explain(self, result: CommandResult) -> str:
        # If the key file is missing, ssh tries to log in without it, and the host refuses the login.
        if self._host.key and not Path(self._host.key).exists():
            return (
                f"there is no file {self._host.key}, which hosts.{self.name}.key names; correct this setting"
            )
        for text, explanation in EXPLANATIONS:
            if text in result.err:
                port = f"port {self._host.port}" if self._host.port else "its port for ssh"
                return explanation.format(host=self._host.address, name=self.name, port=port)
        return result.last_line


def in_brackets(address: str) -> str:
    """Return the address in the form that rsync needs: an IPv6 address is in brackets, because it contains colons."""
    return f"[{address}]" if ":" in address else address


def quoted(path: str, key: str) -> str:
    """Quote a path as one word for ssh's configuration; raise SettingsError if it cannot be quoted.

    A line break in the path would end the option, and the next line could run a command.
    """
    if '"' in path or "\\" in path or not path.isprintable():
        raise SettingsError(
            f"{key} is {path!r}; a path in ssh's configuration must not have quotes, backslashes or line breaks: "
            "name another path"
        )
    return f'"{path}"'


def configuration(host: Host, fleet: Fleet, folder: Path) -> str:
    """Return an ssh configuration: the options that we require, then the user's own configuration."""
    lines = [
        f"Host {host.address}", "BatchMode yes", "StrictHostKeyChecking yes", "ForwardAgent no", "ForwardX11 no",
        f"ConnectTimeout {CONNECT_SECONDS}", "ServerAliveInterval 5", "ServerAliveCountMax 6", "RequestTTY no",
        "ControlMaster auto", f"ControlPath {quoted(f'{folder}/%C', 'the folder for temporary files')}",
        "ControlPersist 60", "LogLevel ERROR",
    ]  # fmt: skip
    if host.user:
        lines.append(f"User {host.user}")
    if host.port:
        lines.append(f"Port {host.port}")
    if host.key:
        lines += [f"IdentityFile {quoted(host.key, 'key')}", "IdentitiesOnly yes"]
    if fleet.known_hosts:
        lines += [
            f"UserKnownHostsFile {quoted(fleet.known_hosts, 'known_hosts')}",
            "GlobalKnownHostsFile /dev/null",
        ]
    own = (Path.home() / ".ssh" / "config", Path("/etc/ssh/ssh_config"))
    return "\n".join([*lines, "Host *", *(f"Include {path}" for path in own if path.exists())]) + "\n"
