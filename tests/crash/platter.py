"""A model of a disk after a power cut: synced data survives, and a random generator decides about the other data."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.coordinator.spool.log_base import log_beside
from protofleet.protocol.storage.disk import Disk

FATES: Final = ("as it was synced", "cut short", "flipped", "zeroed", "as it was written")


class OpenFolders:
    """Folders that stay open, so that no inode number is used twice."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}

    def keep(self, number: int, folder: Path) -> None:
        if number not in self._handles:
            self._handles[number] = os.open(folder, os.O_RDONLY)

    def close(self) -> None:
        while self._handles:
            os.close(self._handles.popitem()[1])

    def __del__(self) -> None:
        self.close()


class Platter:
    """The durable image of one folder, kept through all processes of its party.

    The bytes of a file are durable as of its last sync. A name is durable as of the last sync of its folder.
    A database and the log beside it are durable as of the last commit. `cut(dice)` turns the folder into a
    state that a disk may have after a power cut. Each name that was not synced is the old or the new one.
    Each file that was not synced has its old bytes, all of its new bytes, or new bytes that are cut short,
    zeroed at the end, or have a bit flipped. Without dice no unsynced data survives. A folder is known by its
    content, under any name. A symbolic link survives whole, together with its name.
    """

    def __init__(self, folder: Path, shelf: Path) -> None:
        self.folder, self._shelf = folder, shelf  # The links on the shelf keep inode numbers in use.
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}  # Names and inode numbers in each folder.
        self._targets: dict[int, str] = {}  # Targets of symbolic links, by inode number.
        self._folders: dict[int, Path] = {}  # Folders by inode number.
        self._open = OpenFolders()
        shelf.mkdir(parents=True, exist_ok=True)

    def file_synced(self, path: Path) -> None:
        number = path.stat().st_ino
        if not (link := self._shelf / str(number)).exists():
            os.link(path, link)
        self._bytes[number] = path.read_bytes()

    def folder_synced(self, folder: Path) -> None:
        for entry in folder.iterdir():
            if entry.is_symlink():
                self._note_link(entry)
        self._names[self._number(folder)] = {entry.name: entry.lstat().st_ino for entry in folder.iterdir()}

    def _note_link(self, link: Path) -> None:
        number = link.lstat().st_ino
        self._targets[number] = str(link.readlink())
        if not (again := self._shelf / str(number)).is_symlink():
            os.link(link, again, follow_symlinks=False)

    def _number(self, folder: Path) -> int:
        number = folder.stat().st_ino
        self._open.keep(number, folder)
        self._folders[number] = folder
        return number

    def committed(self, path: Path) -> None:
        for each in (path, log_beside(path)):
            if each.exists():
                self.file_synced(each)
                self._names.setdefault(self._number(path.parent), {})[each.name] = each.stat().st_ino

    @contextlib.contextmanager
    def as_they_are(self) -> Iterator[None]:
        """Keep closed databases and their logs as a crash leaves them; SQLite would merge them."""
        logs = {path: (path.stat().st_ino, path.read_bytes()) for path in self.folder.rglob("*-wal")}
        mains = {path: path.read_bytes() for path in map(database_of, logs)}
        yield
        for path, (number, data) in logs.items():
            if not path.exists():
                database_of(path).write_bytes(mains[database_of(path)])
                path.write_bytes(data)
                self._takes_the_place(path, number)

    def _takes_the_place(self, path: Path, number: int) -> None:
        again = path.stat().st_ino
        os.link(path, self._shelf / str(again))
        if number in self._bytes:
            self._bytes[again] = self._bytes[number]
        names = self._names.get(self._number(path.parent), {})
        names.update({path.name: again} if names.get(path.name) == number else {})

    def _note_closed_databases(self) -> None:
        """Note databases whose log SQLite has removed, because all of the log is durable in the database."""
        for number, names in list(self._names.items()):
            folder = self._folders[number]
            for path in [folder / name for name in names if name.endswith("-wal")]:
                if not path.exists():
                    del names[path.name]
                    if database_of(path).exists():
                        self.committed(database_of(path))

    def cut(self, dice: random.Random | None) -> None:
        self._note_closed_databases()
        survivors = self.folder.with_name(f"{self.folder.name}.after")
        if self.folder.is_dir():
            folders = [self.folder, *(p for p in self.folder.rglob("*") if p.is_dir() and not p.is_symlink())]
            live = {self._number(path): path for path in folders}
            self._survive(self.folder.stat().st_ino, live, survivors, dice)
            shutil.rmtree(self.folder)
            survivors.rename(self.folder)
        shutil.rmtree(self._shelf)
        self._shelf.mkdir()
        self._open.close()
        self._bytes, self._names, self._targets, self._folders = {}, {}, {}, {}
        for path in sorted(self.folder.rglob("*")):
            if not path.is_symlink():
                self.folder_synced(path) if path.is_dir() else self.file_synced(path)
        if self.folder.is_dir():
            self.folder_synced(self.folder)

    def _survive(self, number: int, live: dict[int, Path], target: Path, dice: random.Random | None) -> None:
        """Write the surviving entries of a folder to `target`; `live` has the folders that exist.

        A removed folder may still have a name, and the entries of it that were synced.
        """
        target.mkdir()
        folder = live.get(number)
        now = {entry.name: entry.lstat().st_ino for entry in folder.iterdir()} if folder else {}
        synced = self._names.get(number, {})
        for name in sorted(now.keys() | synced.keys()):
            inside = now.get(name) if dice and dice.random() < 0.5 else synced.get(name)
            if inside is None:
                continue
            if inside in live or inside in self._names:
                self._survive(inside, live, target / name, dice)
            elif folder and now.get(name) == inside and (folder / name).is_symlink():
                (target / name).symlink_to((folder / name).readlink())
            elif inside in self._targets:
                (target / name).symlink_to(self._targets[inside])
            else:
                (target / name).write_bytes(self._surviving_bytes(inside, folder, dice))

    def _surviving_bytes(self, number: int, folder: Path | None, dice: random.Random | None) -> bytes:
        old = self._bytes.get(number, b"")
        beside = folder.iterdir() if folder else ()
        paths = [*(p for p in beside if p.lstat().st_ino == number), self._shelf / str(number)]
        new = paths[0].read_bytes() if paths[0].exists() else b""  # Without a file, only the name was synced.
        return old if dice is None or new == old else spoilt(old, new, dice)


def database_of(log: Path) -> Path:
    return log.with_name(log.name.removesuffix("-wal"))


def spoilt(old: bytes, new: bytes, dice: random.Random) -> bytes:
    begin = len(old) if new.startswith(old) else 0  # The synced part of a grown file is safe.
    cut = dice.randrange(begin, len(new) + 1)
    match dice.choice(FATES):
        case "as it was synced":
            return old
        case "cut short":
            return new[:cut]
        case "zeroed":
            return new[:cut] + bytes(len(new) - cut)
        case "flipped" if new:
            at = min(cut, len(new) - 1)
            return new[:at] + bytes([new[at] ^ 1 << dice.randrange(8)]) + new[at + 1 :]
    return new


class FrailDisk(Disk):
    """The disk of one process over a platter.

    It does no fsync, but records the data that an fsync would make durable.
    """

    def __init__(self, platter: Platter) -> None:
        super().__init__(durable=False)
        self.platter = platter
        self._databases: list[sqlite3.Connection] = []

    def die(self) -> None:
        """Close all files of the dead process."""
        with self.platter.as_they_are():
            for db in self._databases:
                db.close()

    def sync(self, path: Path) -> None:
        super().sync(path)
        if path == self.platter.folder or self.platter.folder in path.parents:
            self.platter.folder_synced(path) if path.is_dir() else self.platter.file_synced(path)

    def commit(self, db: sqlite3.Connection, path: Path, durable: bool = True) -> None:
        self._databases.append(db)
        super().commit(db, path, durable)
        if durable:
            self.platter.committed(path)

    def merge_log(self, db: sqlite3.Connection, path: Path) -> None:
        self._databases.append(db)
        super().merge_log(db, path)
        self.platter.committed(path)
