"""The settings that the operator overrides for a limited time. They come in a file that the root has signed.

The device looks for a new file every few seconds. A restarted process reads the file too, so a restart does not end
an override. When the device has used a version of the file, it refuses all earlier versions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from protofleet.edge_client.config import Celsius
from protofleet.edge_client.host.version_file import VersionFile
from protofleet.protocol.security.enrolment import CURRENT, load_trust
from protofleet.protocol.security.keyfiles import KeyFileError
from protofleet.protocol.security.signed_settings import TUNING, SignedTuning, read_tuning
from protofleet.protocol.security.statements import StatementError, StatementFault, read_armoured
from protofleet.protocol.settings.bounds import Bytes, Seconds
from protofleet.protocol.settings.reader import SettingsError, decode, encode, parse_toml

LONGEST_SECONDS: Final = 30 * 86_400
VERSION_FILE: Final = "tuning.version"  # name of the version file in the state folder

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True)
class Overrides:
    """The settings of a device that a signed statement can override for some time.

    A setting that the statement does not have keeps its value from the device's own settings.
    """

    paused: bool = False
    """If true, the device takes no new work."""
    verbose: bool = False
    """If true, the log has more details."""
    hottest_celsius: Celsius = 0.0
    """Temperature of the board's hottest zone, in degrees Celsius, above which the device takes no new work; 0 means
    no limit.
    """
    trainer_memory_bytes: Bytes = 0
    """Largest memory, in bytes, of a training process that is started from now on; 0 means no change."""
    trainer_seconds: Seconds = 0.0
    """Longest time, in seconds, of one piece of work of a process that is started from now on; 0 means no change."""

    def __str__(self) -> str:
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return ", ".join(f"{name} = {encode(getattr(self, name))}" for name in changed) or "nothing"


@dataclass
class OverridesFile:
    """The file with overrides: `check` applies new overrides and ends expired ones."""

    path: Path
    enrolled: Path
    name: str
    folder: Path  # folder of the device's state
    apply: Callable[[Overrides], None]
    clock: Callable[[], float] = time.time
    current: Overrides = field(default_factory=Overrides)
    _until: float = 0.0
    # Modification time and inode of the file when it was read last; another pair means that the file has changed.
    _last_read: tuple[int, int] | None = None

    def check(self) -> None:
        if self.current != Overrides() and self.clock() >= self._until:
            log.info("the tuning has ended; the device uses its own settings again")
            self._set(Overrides(), 0.0)
        try:
            status = self.path.stat()
        except OSError:
            return
        if (found := (status.st_mtime_ns, status.st_ino)) == self._last_read:
            return
        self._last_read = found
        versions = VersionFile(self.folder / VERSION_FILE)
        try:
            signed, overrides = verified_overrides(
                self.path, self.enrolled, self.name, self.clock(), versions.highest()
            )
        except (StatementError, SettingsError, KeyFileError) as error:
            log.warning("the tuning file is not used: %s", error)
            return
        versions.store(signed.version)
        hours = (signed.until - self.clock()) / 3600
        log.info("the tuning file changes settings for %.1f hours: %s", hours, overrides)
        self._set(overrides, float(signed.until))

    def _set(self, overrides: Overrides, until: float) -> None:
        self.current, self._until = overrides, until
        self.apply(overrides)


def verified_overrides(
    path: Path, enrolled: Path, name: str, now: float, highest: int
) -> tuple[SignedTuning, Overrides]:
    """Return the overrides in the file, if they are signed for this device and have not expired.

    Otherwise raise StatementError or another error with the reason.
    """
    trust = load_trust(enrolled / CURRENT)
    signed = read_tuning(read_armoured(TUNING, path), trust.roots.keys)
    if signed.federation != trust.roots.federation:
        raise StatementError(
            StatementFault.WRONG_FEDERATION, f"{path} is for another federation, {signed.federation}"
        )
    if signed.name != name:
        raise StatementError(
            StatementFault.WRONG_NAME, f"{path} is for the device {signed.name}, but this device is {name}"
        )
    if signed.version < highest:
        raise StatementError(
            StatementFault.SUPERSEDED,
            f"{path} is version {signed.version}, but version {highest} was used before; sign the tuning again",
        )
    if now >= signed.until:
        raise StatementError(StatementFault.EXPIRED, f"{path} has expired")
    if signed.until - now > LONGEST_SECONDS:
        raise StatementError(
            StatementFault.MALFORMED,
            f"{path} is valid for longer than the limit of {LONGEST_SECONDS // 86_400} days",
        )
    return signed, decode(Overrides, parse_toml(signed.text.encode(), str(path)), "tuning")
