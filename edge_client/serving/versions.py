"""Versions of a model in a folder, and the links that name them.

`v000017/` is a whole version: it was written beside, synced and renamed, and nothing in it changes afterwards.
`current`, `champion`, `previous` and `pinned` are links. Each moves in one step, so weights and card change together.
Whoever reads asks a link once what it names, and reads that.

The device's processes and `protofleet model` take turns by a lock on the folder.
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

CURRENT: Final = "current"  # what is served
CHAMPION: Final = "champion"  # the highest accuracy on validation images, of the run that current is of
PREVIOUS: Final = "previous"  # what current named before
PINNED: Final = "pinned"  # while it is there, current stays
LINKS: Final = (CURRENT, CHAMPION, PREVIOUS, PINNED)
VERSION: Final = re.compile(r"v(\d{6,9})")
WAITING: Final = ".wait"  # ends the name of a version whose answer has no receipt yet
LEAVING: Final = ".old"  # of one that is being removed
STARTED: Final = re.compile(rf"v(\d{{6,9}})({re.escape(WAITING)}|{re.escape(LEAVING)}|{re.escape(NEW)})?")


@dataclass(frozen=True, slots=True)
class Version:
    """What its card says of it. `problem`: why the card cannot be read."""

    number: int
    folder: Path
    plan: str = ""
    round: int = 0
    validation: float | None = None
    tensors: str = ""  # their hash
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
    """Whatever its card holds."""
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
    """`keep`: how many of the newest stay, beside those that a link names."""

    def __init__(self, folder: Path, keep: int = 3, disk: Disk | None = None) -> None:
        self.folder, self._keep, self.disk = folder, keep, disk or Disk()

    def whole(self) -> list[Version]:
        """Oldest first."""
        names = [entry.name for entry in self.folder.iterdir()] if self.folder.is_dir() else []
        numbers = sorted(int(found[1]) for name in names if (found := VERSION.fullmatch(name)))
        return [read_version(self.folder / name_of(number)) for number in numbers]

    def named(self, link: str) -> Version | None:
        """What a link names; None where it names nothing that is there."""
        try:
            target = str((self.folder / link).readlink())
        except OSError:
            return None
        found = VERSION.fullmatch(target)
        folder = self.folder / target
        return read_version(folder) if found and folder.is_dir() else None

    def write(self, fresh: Version, fill: Callable[[Path], None], *, waits: bool) -> bool:
        """A new version, of the files that `fill` puts into a folder; False where the newest is this model already.

        One that `waits` counts once it is accepted. Others before it that still wait never will.
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
        """Of the model that this device has trained in that round: the coordinator has taken its answer."""
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
        """Finish what a death has interrupted."""
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
        """Current goes on with the newest version, which it gives."""
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
        """Back to what was served before, and stay there."""
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
        """Current is the pinned version, or the newest. A pinned device moves nothing else."""
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
        """The first of equals. Accuracies of another plan say nothing about this one's."""
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
        """Its name goes first, for good: half a version has none."""
        leaving = self.folder / f"{version.name}{LEAVING}"
        self._rename(version.folder, leaving)
        self.disk.remove_folder(leaving)

    def _sweep(self) -> None:
        """What a dead process has begun: those that live wait for the lock."""
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
