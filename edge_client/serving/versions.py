"""The versions of a model in a folder, and the links to versions.

A version is a folder, for example `v000017/`. It is always complete, because it is written under another name, then
synced and renamed. A version never changes. `current`, `champion`, `previous` and `pinned` are links to versions. A
link moves in one step, so a reader of the link sees new weights and the new card at the same moment. A reader should
resolve a link once and read all files from the version's folder.

The processes of the device and `protofleet model` lock the folder while they change it.
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
# The version with the highest accuracy on validation samples. Only versions with the plan of the newest version are
# compared.
CHAMPION: Final = "champion"
PREVIOUS: Final = "previous"  # the version that was served before the current version
PINNED: Final = "pinned"  # the pinned version; while this link exists, `current` names the same version
LINKS: Final = (CURRENT, CHAMPION, PREVIOUS, PINNED)
VERSION: Final = re.compile(r"v(\d{6,9})")
WAITING: Final = ".wait"  # suffix of the folder of a version whose update has no receipt yet
LEAVING: Final = ".old"  # suffix of the folder of a version that is being removed
STARTED: Final = re.compile(rf"v(\d{{6,9}})({re.escape(WAITING)}|{re.escape(LEAVING)}|{re.escape(NEW)})?")


@dataclass(frozen=True, slots=True)
class Version:
    """A version, with values from its card; if the card cannot be read, `problem` has the reason."""

    number: int
    folder: Path
    plan: str = ""
    round: int = 0
    validation: float | None = None
    tensors: str = ""  # hash of the model's tensors
    kind: str = ""  # "global" or "personal"
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
    """Read a version from its card; if the card is wrong, return a version with a `problem`."""
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

    The newest `keep` versions are kept, and also each version to which a link points.
    """

    def __init__(self, folder: Path, keep: int = 3, disk: Disk | None = None) -> None:
        self.folder, self._keep, self.disk = folder, keep, disk or Disk()

    def whole(self) -> list[Version]:
        """Return the complete versions, the oldest one first."""
        names = [entry.name for entry in self.folder.iterdir()] if self.folder.is_dir() else []
        numbers = sorted(int(found[1]) for name in names if (found := VERSION.fullmatch(name)))
        return [read_version(self.folder / name_of(number)) for number in numbers]

    def named(self, link: str) -> Version | None:
        """Return the version that this link names; None if the link or the version is missing."""
        try:
            target = str((self.folder / link).readlink())
        except OSError:
            return None
        found = VERSION.fullmatch(target)
        folder = self.folder / target
        return read_version(folder) if found and folder.is_dir() else None

    def write(self, fresh: Version, fill: Callable[[Path], None], *, waits: bool) -> bool:
        """Write a new version from the files that `fill` puts into a folder, and return whether it was written.

        The version is not written if the newest version has the same model. If `waits` is true, the version is not
        used until `accept` is called. Earlier versions that still wait are removed.
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
        """Accept the waiting version of this plan and round, after the coordinator has accepted its update."""
        if not self.folder.is_dir():
            return
        with self._locked():
            for version in self._waiting():
                if (version.plan, version.round) != (plan, round):
                    continue
                # After a power cut, the accepted version may exist already, next to the waiting version.
                if (counts := self.folder / version.name).exists():
                    self._remove(version)
                else:
                    self._rename(version.folder, counts)
            self._settle()

    def settle(self) -> None:
        """Finish changes of the folder that were interrupted when a process was killed."""
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
        """Remove the pin, so that `current` names the newest version, and return that version."""
        with self._locked():
            if not (self.folder / PINNED).is_symlink():
                raise SettingsError(f"no version is pinned in {self.folder}")
            self.disk.remove(self.folder / PINNED)
            self.disk.sync(self.folder)
            self._settle()
        current = self.named(CURRENT)
        if current is None:
            raise SettingsError(f"{self.folder} has no complete version")
        return current

    def rollback(self) -> Version:
        """Pin the version that was served before the current version, and return the pinned version."""
        with self._locked():
            current, previous = self.named(CURRENT), self.named(PREVIOUS)
            if previous is None or current is None or previous.number == current.number:
                there = f"only {current.name} has been served" if current else "nothing has been served yet"
                raise SettingsError(f"there is no earlier version in {self.folder}: {there}")
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
        raise SettingsError(
            f"there is no version {name_of(number)} in {self.folder}; the versions are: {there}"
        )

    def _settle(self) -> None:
        """Make `current` name the pinned version or, if no version is pinned, the newest version.

        The champion is chosen only if no version is pinned. Old versions are removed.
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
        """Make `champion` name the version with the highest accuracy.

        If several versions have this accuracy, the oldest is chosen. Only versions with the plan of the newest
        version are compared, because accuracies of different plans are not comparable.
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
        """Remove a version; it is renamed first, so that an incomplete folder never has the name of a version."""
        leaving = self.folder / f"{version.name}{LEAVING}"
        self._rename(version.folder, leaving)
        self.disk.remove_folder(leaving)

    def _sweep(self) -> None:
        """Remove unfinished folders. The lock is free, so the processes that wrote them have been killed."""
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
