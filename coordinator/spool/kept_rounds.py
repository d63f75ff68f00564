"""The answers that a coordinator keeps after their rounds, for measurements of what they give away.

    kept/plan.json                       the plan of the run, which names the rounds
    kept/<round>.<phase>/answers.json    the samples that each device has stated, its enrolment and its object
    kept/<round>.<phase>/broadcast.body  the broadcast that the answers belong to
    kept/<round>.<phase>/<device>.answer the answer of a device, after the decoding of a codec

A folder with such a name is complete, because it is written under another name first. A coordinator that died before
that runs the round again and then writes the same folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.round.events import Advance
from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.coordinator.spool.update_reader import UpdateReader
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.kept import keeps, keeps_last
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.storage.disk import is_full
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.arrays import encode, parts
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.names import EVALUATE

log = logging.getLogger("protofleet.coordinator")

KEPT: Final = "kept"
PLAN_FILE: Final = "plan.json"
ABOUT_FILE: Final = "answers.json"
BROADCAST_FILE: Final = "broadcast.body"
ANSWER: Final = ".answer"  # End of the name of a device's file.
# Names of folders that are being written, and of folders that were replaced. Readers pass them over.
NEW, OLD = ".new", ".old"
WAY_OUT: Final = "name fewer rounds in keep.answers, or raise limits.kept_bytes"


class KeptRounds:
    """The folder `kept` of a run. Nothing is written unless the plan names rounds."""

    def __init__(self, plan: Plan, spool: Spool, reader: UpdateReader, most_bytes: int) -> None:
        self._plan, self._spool, self._reader, self._most = plan, spool, reader, most_bytes
        self._folder, self._disk = spool.folder / KEPT, spool.disk
        if plan.keep:
            self._sweep()

    def keep(
        self, advance: Advance, members: Sequence[Member], answers: Mapping[str, Accepted],
        holders: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Keep the answers that a step of the server half uses, if the plan names the round.

        This runs on the thread of the worker, before the step. `holders` has the enrolments that last. Answers of
        other devices are left out, and so are late answers, which belong to another broadcast. If the answers do not
        fit, they are not kept, and the run goes on.
        """
        number, phase = advance.round, advance.phase
        if phase in (None, EVALUATE) or not keeps(self._plan.keep, number):
            return
        given = {
            device: answers[device]
            for device in sorted(advance.devices)
            if device in holders and not answers[device].staleness
        }
        if not given:
            return
        target, about = self._folder / f"{number}.{phase}", description(members, given, holders)
        if read_about(target) == about:
            return  # An earlier process has kept these answers.
        try:
            self._write(target, about, given)
        except OSError as error:
            if not is_full(error):
                raise
            log.warning("round %d %s is not kept: the disk is full", number, phase)
            self._sweep()
        except DamagedError as error:
            log.warning("round %d %s is not kept: %s", number, phase, error)

    def round_ended(self, advance: Advance) -> None:
        """Delete the other rounds that were kept only because each of them was the last one at its time.

        They stay if nothing of this round was kept.
        """
        if not keeps_last(self._plan.keep):
            return
        numbers = {folder: number_of(folder) for folder in self._folders()}
        for folder, number in numbers.items():
            if advance.round in numbers.values() and number not in (advance.round, *self._plan.keep):
                self._delete(folder)

    def forget(self, has_ended: Callable[[str, str], bool]) -> None:
        """Delete the answers of all devices whose enrolments have ended."""
        for folder in self._folders() if self._plan.keep else ():
            about = read_about(folder) or {}
            gone = [device for device, holder in about["holders"].items() if has_ended(device, holder)]
            if gone:
                self._forget(folder, about, gone)

    def _forget(self, folder: Path, about: Mapping[str, Any], gone: Sequence[str]) -> None:
        log.info(
            "the kept answers of %s to %s are deleted, because their enrolment has ended",
            ", ".join(gone), folder.name,
        )  # fmt: skip
        if set(gone) == about["holders"].keys():
            self._delete(folder)
            return
        for device in gone:  # The answer goes first: a name without an answer does no harm.
            self._disk.remove(folder / f"{device}{ANSWER}")
        left = {
            key: {device: value for device, value in table.items() if device not in gone}
            for key, table in about.items()
        }
        self._disk.replace(folder / ABOUT_FILE, text_of(left))

    def _write(self, target: Path, about: Mapping[str, Any], given: Mapping[str, Accepted]) -> None:
        base = next(iter(given.values())).base
        broadcast: Arrays = self._spool.broadcasts.open(base) if base else {}
        files = {BROADCAST_FILE: broadcast}
        files |= {f"{device}{ANSWER}": self._reader.arrays(answer) for device, answer in given.items()}
        if problem := self._problem_with(target, sum(map(size_of, files.values()))):
            log.warning("%s is not kept: %s", target.name, problem)
            return
        self._disk.make(self._folder, self._spool.folder)
        if not (self._folder / PLAN_FILE).exists():
            self._disk.replace(self._folder / PLAN_FILE, self._plan.encode())
        new = self._folder / f".{target.name}{NEW}"
        self._disk.remove_folder(new)
        self._disk.make(new, self._folder)
        for name, arrays in files.items():
            with (new / name).open("wb") as file:
                file.writelines(encode(arrays))
            self._disk.sync(new / name)
        (new / ABOUT_FILE).write_bytes(text_of(about))
        self._disk.sync(new / ABOUT_FILE)
        if target.exists():  # The answers of an earlier attempt at this round.
            self._delete(target)
        self._disk.place(new, target)

    def _problem_with(self, target: Path, size: int) -> str:
        """Return why answers of this size cannot be kept, with value, limit and way out; "" if they can."""
        held = sum(bytes_in(folder) for folder in self._folders() if folder != target)
        if held + size > self._most:
            return (
                f"its answers and their broadcast take {size:,} bytes, and {held:,} bytes are kept already, but "
                f"limits.kept_bytes is {self._most:,}; {WAY_OUT}"
            )
        room = self._disk.free_bytes(self._spool.folder) - self._spool.bytes_of_a_save
        if size > room:
            return (
                f"its answers and their broadcast take {size:,} bytes, but beside the next save the disk has room "
                f"for {max(0, room):,}"
            )
        return ""

    def _delete(self, folder: Path) -> None:
        """Delete a folder under another name, so that no reader finds a part of it."""
        old = self._folder / f".{folder.name}{OLD}"
        self._disk.remove_folder(old)
        self._disk.rename(folder, old)
        self._disk.sync(self._folder)
        self._disk.remove_folder(old)

    def _sweep(self) -> None:
        """Delete the folders that a write or a deletion has left behind."""
        for ending in (NEW, OLD):
            for folder in self._folder.glob(f".*{ending}"):
                if folder.is_dir():
                    self._disk.remove_folder(folder)

    def _folders(self) -> list[Path]:
        return list(kept_folders(self._folder))


def kept_folders(kept: Path) -> Iterator[Path]:
    """Yield the complete folders of kept answers, in the order of their rounds."""
    with contextlib.suppress(FileNotFoundError):
        yield from sorted(
            (path for path in kept.iterdir() if path.name[:1].isdigit() and (path / ABOUT_FILE).is_file()),
            key=lambda path: (number_of(path), path.name),
        )


def number_of(folder: Path) -> int:
    """Return the number of the round of a folder."""
    return int(folder.name.partition(".")[0])


def description(
    members: Sequence[Member], answers: Mapping[str, Accepted], holders: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return what is stored about the answers, each time by device."""
    counts = {member.device: list(member.counts) for member in members if member.counts}
    return {
        "examples": {device: answer.examples for device, answer in answers.items()},
        "counts": {device: counts[device] for device in answers if device in counts},
        "objects": {device: answer.object.hex() for device, answer in answers.items()},
        "holders": {device: holders[device] for device in answers},
    }


def read_about(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return what is stored about the answers in a folder; None if the folder does not exist."""
    try:
        found: dict[str, dict[str, Any]] = json.loads((folder / ABOUT_FILE).read_bytes())
    except FileNotFoundError:
        return None
    return found


def text_of(about: Mapping[str, Any]) -> bytes:
    return json.dumps(about, sort_keys=True, allow_nan=False).encode()


def size_of(arrays: Arrays) -> int:
    return sum(size for _, size in parts(arrays))


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
