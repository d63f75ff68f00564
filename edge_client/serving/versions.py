"""Versions of a model in a folder, and the links that name them.

`v000017/` is a complete version: it was written under another name, synced and renamed, and nothing in it
changes afterwards. `current`, `champion`, `previous` and `pinned` are links. Each link moves in one step, so
weights and card change together. A reader resolves a link once, and then reads from the folder that it names.

A lock on the folder makes the device's processes and `protofleet model` work one after the other.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.methods.served.card_file import CARD
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import NEW, Disk
from protofleet.protocol.storage.folder_lock import held

CURRENT: Final = "current"  # the version that is served
# The highest accuracy on validation images, of the run that current is of.
CHAMPION: Final = "champion"
PREVIOUS: Final = "previous"  # the version that current named before
PINNED: Final = "pinned"  # while this link exists, current stays
LINKS: Final = (CURRENT, CHAMPION, PREVIOUS, PINNED)
VERSION: Final = re.compile(r"v(\d{6,9})")
WAITING: Final = ".wait"  # end of the name of a version whose answer has no receipt yet
LEAVING: Final = ".old"  # end of the name of a version that is being removed
STARTED: Final = re.compile(rf"v(\d{{6,9}})({re.escape(WAITING)}|{re.escape(LEAVING)}|{re.escape(NEW)})?")


@dataclass(frozen=True, slots=True)
class Version:
    """A version, with the facts that its card states; `problem` says why the card cannot be read."""

    number: int
    folder: Path
    plan: str = ""
    round: int = 0
    validation: float | None = None
    tensors: str = ""  # hash of the tensors
    kind: str = ""  # global or personal
    made: str = ""
    problem: str = ""

    @property
    def name(self) -> str:
        return name_of(self.number)

    def same_model(self, other: Version) -> bool:
        mine, others = ((v.plan, v.round, v.kind, v.tensors) for v in (self, other))
        return mine == others


def name_of(number: int) -> str:
    return f"v{number:06}"


def read_version(folder: Path) -> Version:
    """Read the card of a version, whatever it contains."""
    found = STARTED.fullmatch(folder.name)
    number = int(found[1]) if found else 0
    try:
        return labelled(number, folder, json.loads((folder / CARD).read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return Version(number, folder, problem=f"{CARD} cannot be read ({str(error)[:80]})")


def labelled(number: int, folder: Path, card: Mapping[str, Any]) -> Version:
    validation = card.get("validation")
    return Version(
        number, folder, str(card["plan_sha256"]), int(card["round"]),
        None if validation is None else float(validation), str(card["tensors"]),
        "personal" if card.get("device") else "global", str(card.get("made", "")),
    )  # fmt: skip


class ModelVersions:
    """The versions in a folder.

    `keep` is the number of the newest versions that are kept, in addition to those that a link names.
    """

    def __init__(self, folder: Path, keep: int = 3, disk: Disk | None = None) -> None:
        self.folder, self._keep, self.disk = folder, keep, disk or Disk()

    def whole(self) -> list[Version]:
        """Return the complete versions, the oldest first."""
        names = [entry.name for entry in self.folder.iterdir()] if self.folder.is_dir() else []
        numbers = sorted(int(found[1]) for name in names if (found := VERSION.fullmatch(name)))
        return [read_version(self.folder / name_of(number)) for number in numbers]

    def named(self, link: str) -> Version | None:
        """Return the version that a link names; None if it names no existing version."""
        try:
            target = str((self.folder / link).readlink())
        except OSError:
            return None
        found = VERSION.fullmatch(target)
        folder = self.folder / target
        return read_version(folder) if found and folder.is_dir() else None

    def write(self, fresh: Version, fill: Callable[[Path], None], *, waits: bool) -> bool:
        """Write a new version from the files that `fill` puts into a folder.

        Return False if the newest version is already this model. If `waits` is set, the version counts only
        after it is accepted. Earlier versions that still wait are removed.
        """
        self.disk.make(self.folder)
        with self._locked():
            self._sweep()
            waiting = self._waiting()
            newest = [*waiting[-1:], *self.whole()[-1:]] if waits else self.whole()[-1:]
            if any(fresh.same_model(known) for known in newest):
                return False
            number = 1 + max((v.number for v in [*waiting, *self.whole()]), default=0)
            self._write(self.folder / f"{name_of(number)}{WAITING if waits else ''}", fill)
            for version in waiting:
                self._remove(version)
            if not waits:
                self._settle()
        return True

    def accept(self, plan: str, round: int) -> None:
        """Accept the waiting version of this plan and round: the coordinator has accepted its answer."""
        if not self.folder.is_dir():
            return
        with self._locked():
            for version in self._waiting():
                if (version.plan, version.round) != (plan, round):
                    continue
                if (counts := self.folder / version.name).exists():  # a power cut has left both names
                    self._remove(version)
                else:
                    self._rename(version.folder, counts)
            self._settle()

    def settle(self) -> None:
        """Finish the work that the death of a process has interrupted."""
        if self.folder.is_dir():
            with self._locked():
                self._sweep()
                self._settle()

    def pin(self, number: int) -> Version:
        with self._locked():
            version = self._existing(number)
            self._pin(version)
        return version

    def unpin(self) -> Version:
        """Remove the pin, and return the newest version, which becomes current."""
        with self._locked():
            if not (self.folder / PINNED).is_symlink():
                raise SettingsError(f"no version is pinned in {self.folder}")
            self.disk.remove(self.folder / PINNED)
            self.disk.sync(self.folder)
            self._settle()
        current = self.named(CURRENT)
        if current is None:
            raise SettingsError(f"{self.folder} has no whole version")
        return current

    def rollback(self) -> Version:
        """Pin the version that was served before the current one."""
        with self._locked():
            current, previous = self.named(CURRENT), self.named(PREVIOUS)
            if previous is None or current is None or previous.number == current.number:
                there = f"only {current.name} has been served" if current else "nothing has been served yet"
                raise SettingsError(f"there is nothing to go back to in {self.folder}: {there}")
            self._pin(self._existing(previous.number))
        return previous

    def _pin(self, version: Version) -> None:
        self._point(PINNED, version)
        self._move_current(version)

    def _existing(self, number: int) -> Version:
        versions = self.whole()
        for version in versions:
            if version.number == number:
                if version.problem:
                    raise SettingsError(f"{version.folder} cannot be served: {version.problem}")
                return version
        there = ", ".join(version.name for version in versions) or "none"
        raise SettingsError(f"there is no version {name_of(number)} in {self.folder}; there are: {there}")

    def _settle(self) -> None:
        """Let current name the pinned version, or else the newest.

        If a version is pinned, no other link moves.
        """
        versions = [version for version in self.whole() if not version.problem]
        if not versions:
            return
        if (pinned := self.named(PINNED)) is not None:
            self._move_current(pinned)
        else:
            self._move_current(versions[-1])
            self._choose_champion(versions)
        self._remove_old()

    def _move_current(self, version: Version) -> None:
        before = self.named(CURRENT)
        if before is not None and before.number != version.number:
            self._point(PREVIOUS, before)
        self._point(CURRENT, version)

    def _choose_champion(self, versions: list[Version]) -> None:
        """Let champion name the version with the highest accuracy, the first of equals.

        Only versions of the newest version's plan are compared, because accuracies of another plan say
        nothing about this one.
        """
        plan = versions[-1].plan
        known = [(v.validation, -v.number) for v in versions if v.plan == plan and v.validation is not None]
        if known:
            self._point(CHAMPION, self._existing(-max(known)[1]))
        elif (self.folder / CHAMPION).is_symlink():
            self.disk.remove(self.folder / CHAMPION)

    def _point(self, link: str, version: Version) -> None:
        path = self.folder / link
        if not (path.is_symlink() and str(path.readlink()) == version.name):
            self.disk.point(path, version.name)

    def _write(self, target: Path, fill: Callable[[Path], None]) -> None:
        folder = target.with_name(target.name.removesuffix(WAITING) + NEW)
        try:
            self.disk.make(folder)
            fill(folder)
            for path in sorted(folder.iterdir()):
                self.disk.sync(path)
            self.disk.sync(folder)
            self._rename(folder, target)
        except Exception:
            self.disk.remove_folder(folder)
            raise

    def _rename(self, source: Path, target: Path) -> None:
        self.disk.rename(source, target)
        self.disk.sync(self.folder)

    def _waiting(self) -> list[Version]:
        found = [
            path for path in self.folder.glob(f"v*{WAITING}") if VERSION.fullmatch(path.name[: -len(WAITING)])
        ]
        return [read_version(path) for path in sorted(found)]

    def _remove_old(self) -> None:
        linked = {version.number for link in LINKS if (version := self.named(link)) is not None}
        for version in self.whole()[: -self._keep]:
            if version.number not in linked:
                self._remove(version)

    def _remove(self, version: Version) -> None:
        """Remove a version, after a durable rename: an incomplete version never has a version's name."""
        leaving = self.folder / f"{version.name}{LEAVING}"
        self._rename(version.folder, leaving)
        self.disk.remove_folder(leaving)

    def _sweep(self) -> None:
        """Remove what a dead process has begun; living processes wait for the lock."""
        for entry in self.folder.iterdir():
            found = STARTED.fullmatch(entry.name)
            if found and found[2] in (NEW, LEAVING):
                self.disk.remove_folder(entry)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with contextlib.ExitStack() as lock:
            try:
                lock.enter_context(held(self.folder))
            except FileNotFoundError:
                raise SettingsError(f"there is no folder {self.folder}") from None
            yield
