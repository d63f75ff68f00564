"""The inbox, a folder that grows while a device runs, and the list of its samples, `<inbox>/<class>/<file>`.

Another program adds files, so a file may be incomplete. A file is used only when it has not changed for some seconds.
If the device cannot use a file, it logs the reason once. It reads the file again only after the file has changed.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.images.picture import SUFFIXES, decoded_picture
from protofleet.edge_client.data.images.resize import channels_first
from protofleet.edge_client.data.inbox.samples import InboxSamples
from protofleet.edge_client.data.plain_file import UnusableError, content_of
from protofleet.edge_client.data.scaling import SampleKind, Values
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.wire.class_names import Names, listed, normalized
from protofleet.protocol.wire.printable import printable

SETTLE_SECONDS: Final = 2.0  # seconds without a change after which a file counts as complete
MOST_FILES: Final = 100_000
# Largest number of new files that one call of `look` reads. The device's work waits during the call.
MOST_AT_ONCE: Final = 500
ARRAYS: Final = ".npy"
# Ends of the names of unfinished files, which another program is still writing.
UNFINISHED: Final = (".part", ".tmp", ".crdownload", "~")

log = logging.getLogger("protofleet.device")

Signature = tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class InboxEntry:
    """A sample in the inbox, with the SHA-256 of its file's bytes and its class."""

    sha256: bytes
    label: int

    @property
    def draw(self) -> float:
        """Return a random number in [0, 1) that depends only on the file's bytes.

        This number decides whether the sample is held out, so other samples in the inbox do not change the decision.
        """
        return int.from_bytes(self.sha256[:6], "big") / (1 << 48)


Listing = tuple[InboxEntry, ...]  # The samples of an inbox, sorted by hash.


@dataclass
class Inbox:
    folder: Path
    names: Names  # names of the run's classes
    shape: InputShape
    samples: InboxSamples  # store for samples that were read from files
    kind: SampleKind  # kind of the device's own samples; the inbox's samples must have the same kind
    clock: Callable[[], float] = time.time
    _seen: dict[Path, tuple[Signature, InboxEntry | None]] = field(default_factory=dict)
    _told: set[Path] = field(default_factory=set)  # paths with a problem that was logged already

    def look(self) -> Listing:
        """Return the list of the samples that are in the folder now."""
        found: dict[bytes, InboxEntry] = {}
        fresh, seen = 0, dict[Path, tuple[Signature, InboxEntry | None]]()
        for path, label in self._files():
            if len(seen) >= MOST_FILES:
                self._tell(self.folder / "*", f"there are more than {MOST_FILES:,} files; take some away")
                break
            if (known := self._known(path)) is None:
                continue
            signature, before = known
            if before is None and fresh >= MOST_AT_ONCE:
                continue
            fresh += before is None
            try:
                entry = before[1] if before else self._read(path, label)
            except OSError as error:
                # The fault is on the device's own disk, so the file is read again later.
                self._tell(self.samples.folder, f"{_said(path)} cannot be stored yet ({error.strerror})")
                fresh = MOST_AT_ONCE
                continue
            seen[path] = (signature, entry)
            if entry and found.setdefault(entry.sha256, entry).label != entry.label and not before:
                self._skip(path, "the same file is in the folder of another class")
        self._seen = seen
        return tuple(sorted(found.values()))

    def _files(self) -> Iterator[tuple[Path, int]]:
        number = {name: label for label, name in enumerate(self.names)}
        entries = self._entries(self.folder)
        self._say_without_class(entries)
        for folder in entries:
            if folder.name.startswith(".") or not _is_folder(folder):
                continue
            (name,) = normalized((folder.name,))
            if name not in number:
                self._tell(folder, f"{_said(folder)} is no class of this run ({listed(self.names)}); skipped")
                continue
            for path in self._entries(folder):
                if not _is_left_alone(path):
                    yield path, number[name]

    def _say_without_class(self, entries: list[Path]) -> None:
        """Warn of samples that lie in the inbox itself and not in the folder of a class."""
        kinds = {ARRAYS} | (SUFFIXES if self.shape.rank == 3 else set())
        named = (path for path in entries if path.suffix.lower() in kinds and not _is_left_alone(path))
        found = [path for path in named if self._is_whole_file(path)]
        key = self.folder / "<class>"
        if not found:
            self._told.discard(key)
            return
        many = f"{_said(found[0])} and {len(found) - 1:,} more are" if found[1:] else f"{_said(found[0])} is"
        self._tell(key, f"{many} in no folder of a class, and skipped; the classes are {listed(self.names)}")

    def _entries(self, folder: Path) -> list[Path]:
        try:
            found = sorted(folder.iterdir())
        except OSError as error:
            self._tell(
                folder, f"{_said(folder)} cannot be read ({error.strerror}); its samples count as gone"
            )
            return []
        self._told.discard(folder)
        return found

    def _tell(self, of: Path, words: str) -> None:
        """Log a problem of this path. Do not log it again before the problem has ended."""
        if of not in self._told:
            self._told.add(of)
            log.warning("inbox: %s", words)

    def _known(self, path: Path) -> tuple[Signature, tuple[Signature, InboxEntry | None] | None] | None:
        """Return the file's signature, and the result of an earlier check if the file is unchanged since then.

        Return None if the file is not complete yet, or if it was removed.
        """
        try:
            found = path.lstat()
        except OSError:
            return None
        # st_ctime_ns shows a change of owner or mode too. Such a change may make an unreadable file readable.
        signature = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
        before = self._seen.get(path)
        if before is not None and before[0] == signature:
            return signature, before
        return (signature, None) if self._is_settled(found) else None

    def _is_whole_file(self, path: Path) -> bool:
        try:
            found = path.lstat()
        except OSError:  # The file was just removed, or the device is not allowed to read the folder.
            return False
        return stat.S_ISREG(found.st_mode) and self._is_settled(found)

    def _is_settled(self, found: os.stat_result) -> bool:
        return not 0 <= self.clock() - found.st_mtime < SETTLE_SECONDS

    def _read(self, path: Path, label: int) -> InboxEntry | None:
        """Read a file, store its sample and return its entry; return None if the file cannot be used.

        Raise OSError if the sample cannot be stored.
        """
        try:
            content = content_of(path, links=False)
            sha256 = hashlib.sha256(content).digest()
            values = None if self.samples.has(sha256) else self._sample_in(content, path.suffix.lower())
        except FileNotFoundError:  # The file was just removed.
            return None
        except UnusableError as error:
            self._skip(path, str(error))
            return None
        except OSError as error:
            self._skip(path, f"it cannot be read ({error.strerror})")
            return None
        if values is not None:
            self.samples.keep(sha256, values)
            self._told.discard(self.samples.folder)
        return InboxEntry(sha256, label)

    def _sample_in(self, content: bytes, suffix: str) -> Values:
        values = sample_in(content, suffix, self.shape)
        if problem := self.kind.problem_with(values):
            raise UnusableError(problem)
        return values

    def _skip(self, path: Path, reason: str) -> None:
        log.warning("inbox: %s is skipped: %s", _said(path), reason)


def _said(path: Path) -> str:
    return printable(f"{path.parent.name}/{path.name}")[:200]


def _is_left_alone(path: Path) -> bool:
    return path.name.startswith(".") or path.name.lower().endswith(UNFINISHED)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # The device is not allowed to read the folder. `Inbox._entries` reports this.
        return True


def sample_in(content: bytes, suffix: str, shape: InputShape) -> Values:
    """Decode a file to values [*shape]: uint8 for pixels, float32 for other numbers.

    Raise UnusableError if the content is not a usable picture or array.
    """
    if suffix == ARRAYS:
        return _array(content, shape)
    if shape.rank == 3 and suffix in SUFFIXES:
        return _picture(content, shape)
    wanted = f"a picture or a {ARRAYS} file" if shape.rank == 3 else f"a {ARRAYS} file"
    raise UnusableError(f"{suffix or 'a file without a suffix'} is not {wanted}")


def _array(content: bytes, shape: InputShape) -> Values:
    try:
        values = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # noqa: BLE001 - NumPy raises whatever its parser of headers does
        raise UnusableError(f"it is not a NumPy array ({_first_line(error)})") from None
    if isinstance(values, np.ndarray) and shape.rank == 3 and values.dtype == np.uint8:
        # Many programs store pictures with the channels last.
        if values.shape == (*shape.spatial, shape.channels):
            values = values.transpose(2, 0, 1)
        if values.shape == shape.axes:
            return np.ascontiguousarray(values)
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu" or values.shape != shape.axes:
        found = f"{values.dtype} {list(values.shape)}" if isinstance(values, np.ndarray) else "no array"
        raise UnusableError(f"it has {found}, but this run learns from {shape}")
    numbers = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(numbers).all():
        raise UnusableError("it has numbers that are not finite")
    return numbers


def _picture(content: bytes, shape: InputShape) -> Values:
    if shape.channels not in (1, 3):
        raise UnusableError(f"a picture has 1 or 3 channels, but this run learns from {shape}")
    height, width = shape.spatial
    pixels = decoded_picture(content, (height, width))
    return np.ascontiguousarray(channels_first(pixels[None], shape.channels)[0])


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:100]


def held_out(entry: InboxEntry, own_test: float | None, validation: float) -> str:
    """Return the use of a sample: "test", "validation" or "train".

    `own_test` and `validation` are the settings data.own_test and data.validation: fractions of samples to hold out.
    """
    test = own_test or 0.0
    if entry.draw < test:
        return "test"
    return "validation" if entry.draw < test + (1 - test) * validation else "train"


def counts_of(listing: Listing, names: Names) -> Mapping[str, int]:
    return {name: sum(entry.label == label for entry in listing) for label, name in enumerate(names)}
