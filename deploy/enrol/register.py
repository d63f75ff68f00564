"""The register of what an operator has issued: an entry for each certificate, and no secret."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from protofleet.protocol.security.keyfiles import write_file
from protofleet.protocol.security.records import MAX_SERIALS
from protofleet.protocol.settings.reader import SettingsError, decode, encode

REGISTER: Final = "register.json"
CHECK: Final = "check"  # a short-lived certificate of our own, to see what a broker does; no participant's


@dataclass(frozen=True)
class Entry:
    serial: int
    name: str
    part: str  # device, coordinator, broker or check
    root: int  # the number of the root that signed it
    not_before: int
    not_after: int
    fingerprint: str  # of the request
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
    roots: tuple[int, ...] = (1,)  # numbers of the roots in use, the newest last
    began: tuple[int, ...] = ()  # in registers of an earlier form; not read
    roots_version: int = 1
    version: int = 0  # of the revocation lists
    # Serials in the lists of this version; None: a register of an earlier form.
    listed: tuple[int, ...] | None = None
    last_serial: int = 0
    entries: tuple[Entry, ...] = field(default_factory=tuple)

    def latest(self, name: str) -> Entry | None:
        """The newest entry of this name, revoked and expired ones too."""
        own = (e for e in self.entries if e.name == name and e.part != CHECK)
        return max(own, key=lambda e: e.serial, default=None)

    def current_entries(self, now: float) -> list[Entry]:
        """The newest entry of each name, where that is valid."""
        return [e for e in self._newest() if e.is_valid(now)]

    def due_entries(self, until: float) -> list[Entry]:
        """The newest entry of each name that was not revoked, where it ends by then; what has expired comes first."""
        due = [e for e in self._newest() if not e.revoked_at and e.not_after <= until]
        return sorted(due, key=lambda e: (e.not_after, e.name))

    def _newest(self) -> list[Entry]:
        newest = {e.name: e for e in sorted(self.entries, key=lambda e: e.serial) if e.part != CHECK}
        return [e for _, e in sorted(newest.items())]

    def with_entry(self, entry: Entry) -> Register:
        return replace(self, last_serial=entry.serial, entries=(*self.entries, entry))

    def with_revoked(self, serials: set[int], now: int, reason: str) -> Register:
        marked = (
            replace(e, revoked_at=now, reason=reason) if e.serial in serials and not e.revoked_at else e
            for e in self.entries
        )
        return replace(self, entries=tuple(marked)).with_revocation_lists(now)

    def with_revocation_lists(self, now: int) -> Register:
        """Lists of a new version, which is never used twice, even if an old backup was restored. A version's lists do
        not change, even when an entry expires: whoever has a list accepts no other one of its version."""
        listed = sorted(e.serial for e in self.entries if e.revoked_at and now <= e.not_after)
        if len(listed) > MAX_SERIALS:
            message = (
                f"{len(listed)} revoked certificates are not expired yet, and a list takes {MAX_SERIALS}"
            )
            raise SettingsError(f"{message}; enrol a new federation, or wait until the first of them expire")
        return replace(self, listed=tuple(listed), version=max(self.version + 1, now))

    def without_expired_checks(self, now: float) -> Register:
        kept = (e for e in self.entries if e.part != CHECK or now <= e.not_after)
        return replace(self, entries=tuple(kept))


def load_register(folder: Path) -> Register:
    path = folder / REGISTER
    try:
        return decode(Register, json.loads(path.read_text()))
    except FileNotFoundError:
        message = (
            f"{folder} is no root of a federation: put its copy back, or name another folder; for a new federation "
            f"`protofleet enrol root {folder}` makes one"
        )
        raise SettingsError(message) from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path} is damaged: {error}") from None


def save_register(folder: Path, register: Register, durable: bool = True) -> None:
    text = json.dumps(encode(register), indent=1) + "\n"
    write_file(folder / REGISTER, text.encode(), durable=durable)
