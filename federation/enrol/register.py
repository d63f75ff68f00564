"""Store the register of an operator: it has an entry for each issued certificate, and does not contain secrets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from protofleet.protocol.security.keyfiles import write_file
from protofleet.protocol.security.records import MAX_SERIALS
from protofleet.protocol.settings.reader import SettingsError, decode, encode

REGISTER: Final = "register.json"
# The value of the field `part` for the short-lived certificates with which we test a broker. No participant has this
# value.
CHECK: Final = "check"
# The value of the field `part` for the coordinator's second certificate. It has no request and no approval of its
# own, and it is renewed and revoked together with the coordinator.
STANDBY_PART: Final = "standby"


@dataclass(frozen=True)
class RegisterEntry:
    serial: int
    name: str
    part: str  # "device", "coordinator", "broker", "operator", "standby" or "check"
    root: int  # The number of the root that signed the certificate.
    not_before: int
    not_after: int
    fingerprint: str  # The fingerprint of the request.
    revoked_at: int = 0
    reason: str = ""

    def is_valid(self, now: float) -> bool:
        return not self.revoked_at and now <= self.not_after

    def state(self, now: float) -> str:
        if self.revoked_at:
            return "revoked"
        return "expired" if now > self.not_after else "valid"


@dataclass(frozen=True)
class Register:
    federation: str
    roots: tuple[int, ...] = (1,)  # The numbers of the roots in use, with the newest root last.
    began: tuple[int, ...] = ()  # Only registers of an earlier form have this field. Its value is not used.
    roots_version: int = 1
    version: int = 0  # The version of the revocation lists.
    # The serial numbers in the lists of this version. None means that the register has an earlier form.
    listed: tuple[int, ...] | None = None
    last_serial: int = 0
    entries: tuple[RegisterEntry, ...] = field(default_factory=tuple)

    def latest(self, name: str) -> RegisterEntry | None:
        """Return the newest entry of this name, even if it is revoked or has expired."""
        own = (e for e in self.entries if e.name == name and e.part != CHECK)
        return max(own, key=lambda e: e.serial, default=None)

    def current_entries(self, now: float) -> list[RegisterEntry]:
        """Return the newest entry of each name, if this entry is valid."""
        return [e for e in self._newest() if e.is_valid(now)]

    def due_entries(self, until: float) -> list[RegisterEntry]:
        """Return the entries that are not revoked and end by this time, sorted by their end.

        For each name, only its newest entry is considered.
        """
        own = (e for e in self._newest() if e.part != STANDBY_PART)
        due = [e for e in own if not e.revoked_at and e.not_after <= until]
        return sorted(due, key=lambda e: (e.not_after, e.name))

    def _newest(self) -> list[RegisterEntry]:
        newest = {e.name: e for e in sorted(self.entries, key=lambda e: e.serial) if e.part != CHECK}
        return [e for _, e in sorted(newest.items())]

    def with_entry(self, entry: RegisterEntry) -> Register:
        return replace(self, last_serial=entry.serial, entries=(*self.entries, entry))

    def with_revoked(self, serials: set[int], now: int, reason: str) -> Register:
        marked = (
            replace(e, revoked_at=now, reason=reason) if e.serial in serials and not e.revoked_at else e
            for e in self.entries
        )
        return replace(self, entries=tuple(marked)).with_revocation_lists(now)

    def with_revocation_lists(self, now: int) -> Register:
        """Return the register with revocation lists of a new version.

        A version is never used twice, even if an old backup was restored. The lists of a version never change, even
        when an entry expires. A host refuses a list that has the version of the host's own list but other entries.
        """
        listed = sorted(e.serial for e in self.entries if e.revoked_at and now <= e.not_after)
        if len(listed) > MAX_SERIALS:
            message = (
                f"{len(listed)} revoked certificates have not expired, but a revocation list has room for only "
                f"{MAX_SERIALS}"
            )
            raise SettingsError(
                f"{message}; enrol a new federation, or wait until some of these certificates have expired"
            )
        return replace(self, listed=tuple(listed), version=max(self.version + 1, now))

    def without_expired_checks(self, now: float) -> Register:
        kept = (e for e in self.entries if e.part != CHECK or now <= e.not_after)
        return replace(self, entries=tuple(kept))


class NoRootError(SettingsError):
    """The error for a folder that contains no root and no files of an earlier root."""


def lost(what: Path, folder: Path) -> SettingsError:
    """Return the error for a root whose files are missing.

    Enrolled hosts do not accept a new root, so the operator must restore the lost root and not make a new one.
    """
    return SettingsError(
        f"{what} is missing: restore your copy of {folder} (docs/day-2.md, Lose the root); enrolled hosts do not "
        "accept a new root"
    )


def load_register(folder: Path) -> Register:
    path = folder / REGISTER
    try:
        return decode(Register, json.loads(path.read_text()))
    except FileNotFoundError:
        if (folder / "roots").exists():
            raise lost(path, folder) from None
        message = (
            f"{folder} is no root of a federation; if it was a root before, restore your copy (docs/day-2.md)"
        )
        raise NoRootError(
            f"{message}; for a new federation, `protofleet enrol root {folder}` makes a root"
        ) from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path} is damaged: {error}") from None


def save_register(folder: Path, register: Register, durable: bool = True) -> None:
    text = json.dumps(encode(register), indent=1) + "\n"
    write_file(folder / REGISTER, text.encode(), durable=durable)
