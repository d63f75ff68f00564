"""What survives a coordinator: the snapshots at the rounds' starts, the cohorts, and every accepted answer.

An answer is accepted only once its bytes and its row are on the disk. One SQLite file is the index; tensors lie
beside it as objects, named by their hashes. `recover` gives back exactly what a replay needs. Two generations are
kept: a damaged snapshot makes the replay begin a round earlier, and that round's answers are still here.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from protofleet.coordinator.round.events import Recovered
from protofleet.coordinator.spool.columns import members_in, names_in, saved_devices
from protofleet.coordinator.spool.index import FencedError, Index, RunMismatchError, way_on
from protofleet.coordinator.spool.traffic import RoundTraffic, read_traffic
from protofleet.methods.contract.base import Member
from protofleet.protocol.storage.disk import Disk, is_full, is_locked
from protofleet.protocol.storage.store import DamagedError, ObjectStore
from protofleet.protocol.wire.class_names import ClassNames
from protofleet.protocol.wire.messages import Arrays

__all__ = ["Accepted", "FencedError", "RunMismatchError", "Spool", "members_in", "names_in"]

log = logging.getLogger("protofleet.coordinator")

GENERATIONS: Final = 3  # at most; two that differ are enough
Generation: TypeAlias = tuple[int, int, int, str, str, str]  # a row of checkpoint


@dataclass(frozen=True, slots=True)
class Accepted:
    device: str
    base: bytes
    object: bytes
    examples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class SavedRound:
    """A round and what it began with."""

    past: Recovered
    members: Mapping[str, Member]
    state: Arrays


@dataclass(frozen=True, slots=True)
class AskedBroadcast:
    """Of a broadcast among all that were asked with in this run."""

    number: int
    round: int


@dataclass(frozen=True, slots=True)
class LastAnswer:
    """Of a device: the newest that was accepted."""

    round: int
    base: bytes
    boot: int
    holds: bool  # whether it has ever said what it holds
    number: int  # of its broadcast among all


class Spool:
    """One folder of one run. `durable=False` spares the fsyncs of a simulation."""

    def __init__(self, folder: Path, durable: bool = True, disk: Disk | None = None) -> None:
        self.folder, self.disk = folder, disk or Disk(durable)
        self.snapshots = ObjectStore(folder / "snapshots", disk=self.disk)
        # A replay makes them again.
        self.broadcasts = ObjectStore(folder / "broadcasts", durable=False, disk=self.disk)
        self._stores: dict[str, ObjectStore] = {}
        self.index = Index(folder, self.disk)
        self._db = self.index.db
        self.fallbacks = Counter({"index": int(self.index.fell_back)})  # what was found damaged at the start
        # What has crossed in which round, as the one who counts it says; and what of it is on the disk.
        self.crossing: Callable[[], tuple[int, RoundTraffic] | None] = lambda: None
        self._noted: tuple[int, str] = (0, "")
        self.damaged: list[
            tuple[int, str, str]
        ] = []  # round, phase and device of answers that are in no more
        self._holders: set[str] = set()  # devices that say what they hold
        self._usable = self._choose()  # the newest generation whose snapshot is whole, and those after it

    def store(self, device: str) -> ObjectStore:
        if device not in self._stores:
            self._stores[device] = ObjectStore(self.folder / "updates" / device, disk=self.disk)
        return self._stores[device]

    def start_run(self, name: str, settings: str, clock: int, least: int = 0) -> int:
        """Claim the folder; the new epoch comes back, above every earlier one even if the clock went back."""
        return self.index.claim(name, settings, clock, least)

    def save(
        self, round: int, attempt: int, cohort: Sequence[str], members: Mapping[str, Member], state: Arrays,
        roster: Collection[str] = (), domains: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """A new generation; the one before it is kept with its answers, everything older goes."""
        self.demand(2 * sum(array.nbytes for array in state.values()))  # and for what is asked with it
        name = self.snapshots.put(state).object.hex()
        guests = [
            [m.device, m.examples, list(m.counts), (domains or {}).get(m.device, ""), m.device in roster]
            for m in members.values()
        ]
        with self.index.transaction():
            newest = self._db.execute("SELECT COALESCE(MAX(id), 0) FROM checkpoint").fetchone()[0]
            made = (newest + 1, round, attempt, json.dumps(list(cohort)), json.dumps(guests), name)
            self.index.put("checkpoint", *made)
            self._forget_but(worth_keeping(self._generations()))
            self._note_crossed()
        self.index.keep_copy()
        self._usable = [made]
        self._prune()

    @property
    def furthest(self) -> int:
        """The last round that has begun, as far as this folder knows; 0: none."""
        begun = (
            "SELECT round FROM checkpoint UNION SELECT round + 1 FROM aside WHERE device != ''"  # went back
        )
        found: int = self._db.execute(f"SELECT COALESCE(MAX(round), 0) FROM ({begun})").fetchone()[0]
        return found

    def state(self) -> Arrays | None:
        """The server half's state at the last save, or at the save before it where that one is damaged."""
        return self.snapshots.open(bytes.fromhex(self._usable[0][5])) if self._usable else None

    def accept(
        self, round: int, phase: str, answer: Accepted, heard: tuple[int, int] = (0, 0), holder: str = ""
    ) -> None:
        """One moment for both: the answer counts, and nothing up to its sender's `heard` will be news again."""
        with self.index.transaction():
            metrics = json.dumps(dict(answer.metrics), allow_nan=False)
            self.index.put(
                "accepted", round, phase, answer.device, answer.base, answer.object, answer.examples, metrics
            )
            self.index.put("heard", answer.device, *heard)
            self.index.put("holders", answer.device, holder, heard[0])
            self._note_asked(round, answer, heard[0])
            self._note_crossed()

    def heard(self) -> dict[str, tuple[int, int, str]]:
        """Of each sender the boot and the newest sequence at its last accepted answer, and who held the name then.

        Nobody knows where a version before this one has written last.
        """
        rows = self._db.execute(
            "SELECT sender, boot, sequence, COALESCE(holder, '') FROM heard LEFT JOIN holders USING (sender, boot)"
        )
        return {sender: (boot, sequence, holder) for sender, boot, sequence, holder in rows}

    def refuse(self, device: str, object_name: bytes) -> None:
        """Forget an answer that is not used, or refused ones would fill the disk; not one that is in as well."""
        query = "SELECT 1 FROM accepted WHERE device = ? AND object = ?"
        if self._db.execute(query, (device, object_name)).fetchone() is None:
            self.store(device).drop(object_name)

    def bytes_of_answers(self) -> int:
        """What answers take of the disk, unfinished ones with all that they will take."""
        files = (self.folder / "updates").glob("*/*")
        return sum(path.stat().st_size for path in files)

    def bytes_of_unfinished(self, device: str) -> int:
        """What has come of an answer that is on its way."""
        parts = (self.folder / "updates" / device).glob("*.part")
        return sum(path.stat().st_blocks * 512 for path in parts)

    @property
    def bytes_of_a_save(self) -> int:
        """What the next one will demand, as far as that is known."""
        return 2 * self.snapshots.size(bytes.fromhex(self._usable[-1][5])) if self._usable else 0

    def forget_earlier(self) -> None:
        """Room is worth more than the answers of the round before: until the next save, one generation only."""
        rows = self._generations()
        kept = [row for row in rows if row[1] >= self._usable[0][1]] if self._usable else rows
        if len(kept) == len(rows):
            return
        with contextlib.suppress(OSError, sqlite3.OperationalError):  # too full even for that
            with self.index.transaction():
                self._forget_but(kept)
            self._prune()

    def demand(self, size: int) -> None:
        """See to it that there is room for so much, or raise as a full disk does: before anything is written."""
        if self.disk.room(self.folder) < size:
            self.forget_earlier()
        if (room := self.disk.room(self.folder)) < size:
            raise OSError(errno.ENOSPC, f"{size} bytes are needed, {room} are free", str(self.folder))

    def check_claim(self) -> None:
        """FencedError where another coordinator has taken over: nothing of it may be pruned or fetched over."""
        self.index.check_claim()

    def close(self, round: int, phase: str, devices: Sequence[str]) -> None:
        with self.index.transaction():
            self.index.put("closed", round, phase, json.dumps(devices))
            self._note_crossed()
        self.index.keep_copy()

    def rollback(self, round: int) -> None:
        """The round starts again; answers already in stay good for whoever is asked the same again."""
        with self.index.transaction():
            self._db.execute("DELETE FROM closed WHERE round = ?", (round,))
            self._note_crossed()

    def _note_asked(self, round: int, answer: Accepted, boot: int) -> None:
        """Which broadcasts were asked with, in their order, and which of them each device answered last."""
        if not answer.base:
            return
        if self.asked(answer.base) is None:
            newest = self._db.execute("SELECT COALESCE(MAX(number), 0) FROM asked").fetchone()[0]
            self.index.put("asked", answer.base, newest + 1, round)
        self.index.put(
            "answered", answer.device, round, answer.base, boot, int(answer.device in self._holders)
        )

    def noted_holder(self, device: str, holds: Collection[bytes]) -> None:
        if holds:
            self._holders.add(device)

    def asked(self, base: bytes) -> AskedBroadcast | None:
        row = self._db.execute("SELECT number, round FROM asked WHERE base = ?", (base,)).fetchone()
        return AskedBroadcast(*row) if row else None

    @property
    def knows_all_that_was_asked(self) -> bool:
        """Not where a version before this one began the run, nor after `skip_to`."""
        first = self._db.execute("SELECT MIN(round) FROM asked").fetchone()[0]
        return first == 1 or (first is None and self.furthest <= 1)

    def last_answer(self, device: str) -> LastAnswer | None:
        query = "SELECT round, base, boot, holds FROM answered WHERE device = ?"
        row = self._db.execute(query, (device,)).fetchone()
        if row is None or (place := self.asked(row[1])) is None:
            return None
        return LastAnswer(row[0], row[1], row[2], bool(row[3]), place.number)

    def answered_since(self, device: str, boot: int) -> list[tuple[int, str, bytes]]:
        """Of its newest round: round, phase and base of what was accepted, oldest first. Nothing within one boot."""
        heard = self._db.execute("SELECT boot FROM heard WHERE sender = ?", (device,)).fetchone()
        if heard is None or heard[0] == boot:
            return []
        query = "SELECT round, phase, base FROM accepted WHERE device = ? ORDER BY round, rowid"
        rows = self._db.execute(query, (device,)).fetchall()
        return [(number, phase, base) for number, phase, base in rows if number == rows[-1][0]]

    def note_crossed(self) -> None:
        """Beside all else that is written; a disk that is full or locked can do without."""
        noted = self._noted
        try:
            with self.index.transaction():
                self._note_crossed()
        except sqlite3.OperationalError as error:
            self._noted = noted
            if not (is_full(error, self.folder) or is_locked(error)):
                raise

    def _note_crossed(self) -> None:
        if (said := self.crossing()) and (noted := (said[0], said[1].text())) != self._noted:
            self.index.put("crossed", noted[0], self.index.epoch, noted[1])
            self._noted = noted

    def crossed_before(self, round: int) -> list[RoundTraffic]:
        """In the earlier lives of this coordinator in which that round was open."""
        query = "SELECT counts FROM crossed WHERE round = ? AND epoch != ? ORDER BY epoch"
        return [read_traffic(row[0]) for row in self._db.execute(query, (round, self.index.epoch))]

    def answers(self, round: int, phase: str) -> dict[str, Accepted]:
        rows = self._db.execute(
            "SELECT device, base, object, examples, metrics FROM accepted WHERE round = ? AND phase = ?",
            (round, phase),
        )
        return {row[0]: Accepted(row[0], row[1], row[2], row[3], json.loads(row[4])) for row in rows}

    def has_other_answer(self, round: int, phase: str, device: str, base: bytes, name: bytes) -> bool:
        """Whether another one of this device to this very question is accepted."""
        query = "SELECT base, object FROM accepted WHERE round = ? AND phase = ? AND device = ?"
        row = self._db.execute(query, (round, phase, device)).fetchone()
        return row is not None and row[0] == base and row[1] != name

    def recover(self) -> tuple[Recovered, dict[str, Member]] | None:
        """Where a replay begins, and what has been decided after that; None where nothing has."""
        if not self._usable:
            return None
        past = [self._past(row) for row in self._usable]
        members = {d: g.member for row in reversed(self._usable) for d, g in saved_devices(row[4]).items()}
        aside, diverged = self._put_aside()
        earlier = self._earlier(past[0].round)
        return replace(
            past[0], ahead=tuple(past[1:]), earlier=earlier, aside=aside, diverged=diverged
        ), members

    def generation(self, round: int) -> SavedRound | None:
        """A round that is kept, as it was when its last phase was closed."""
        for row in self._generations():
            if row[1] == round and self.snapshots.has(name := bytes.fromhex(row[5])):
                members = {device: guest.member for device, guest in saved_devices(row[4]).items()}
                return SavedRound(self._past(row), members, self.snapshots.open(name))
        return None

    def save_class_names(self, class_names: ClassNames) -> None:
        """What the classes of the run are called, for whoever conducts it next."""
        with self.index.transaction():
            self.index.put(
                "named", 1, class_names.digest, json.dumps(list(class_names.names), allow_nan=False)
            )

    def class_names(self) -> ClassNames | None:
        row = self._db.execute("SELECT digest, names FROM named").fetchone()
        return ClassNames(row[0], tuple(names_in(row[1]))) if row else None

    def put_aside(
        self, round: int, phase: str, devices: Sequence[str], aside: Sequence[str], words: str
    ) -> None:
        """Back to the start of a round, for good: what came after it is no more, and neither are some answers."""
        with self.index.transaction():
            for table in ("checkpoint", "accepted", "closed"):
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (round,))
            this = "SELECT rowid FROM closed WHERE round = ? AND phase = ?"
            later = f"DELETE FROM closed WHERE rowid > ({this}) AND round = ?"
            self._db.execute(later, (round, phase, round))
            self.index.put("closed", round, phase, json.dumps(devices))
            for device in aside:
                self.index.put("aside", round, device, words)
        self.index.keep_copy()
        self._usable = self._generations()[:1]
        self._prune()

    def diverge(self, round: int, words: str) -> None:
        with self.index.transaction():
            self.index.put("aside", round, "", words)

    def _put_aside(self) -> tuple[dict[int, tuple[str, ...]], str]:
        """By round whose answers were put aside in it; and why the run has ended, if it has."""
        found: dict[int, tuple[str, ...]] = {}
        diverged = ""
        for number, device, words in self._db.execute(
            "SELECT round, device, words FROM aside ORDER BY round"
        ):
            if device:
                found[number] = (*found.get(number, ()), device)
            else:
                diverged = words
        return found, diverged

    def domains(self) -> dict[str, str]:
        """Of the devices that `recover` names."""
        return {
            d: g.domain
            for row in reversed(self._usable)
            for d, g in saved_devices(row[4]).items()
            if g.domain
        }

    @property
    def last_round(self) -> int:
        """The final evaluation's number, as the plan of this run has it."""
        row = self._db.execute("SELECT settings FROM run").fetchone()
        return int(json.loads(row[0])["rounds"]) + 1 if row else 0

    def demand_later(self, round: int) -> None:
        """ValueError where this folder cannot go on in that round."""
        last = self.last_round
        if self.furthest >= last:
            raise ValueError(
                f"{self.folder} knows of the final evaluation, round {last}: no later round is left to go on in. "
                "Where the run is not finished, start its coordinator as ever; a finished one needs nothing"
            )
        if not self.furthest < round <= last:
            raise ValueError(
                f"--from-round is {round}, it must be above {self.furthest}, the last round that {self.folder} knows "
                f"of, and at most {last}, the final evaluation"
            )

    def skip_to(self, round: int) -> None:
        """Go on from an older copy: its state counts as that of the beginning of a later round."""
        self.demand_later(round)
        _, _, _, cohort, guests, name = self._usable[-1]
        with self.index.transaction():
            made = (self._generations()[0][0] + 1, round, 0, cohort, guests, name)
            self.index.put("checkpoint", *made)
            self._forget_but([made])
            for table in ("asked", "answered"):  # devices know more than stands there
                self._db.execute(f"DELETE FROM {table}")
        self.index.keep_copy()
        self._usable = [made]
        self._prune()

    def shut(self) -> None:
        self.index.close()

    def _past(self, row: Generation) -> Recovered:
        _, number, attempt, cohort, guests, _ = row
        accepted: dict[str, dict[str, bytes]] = {}
        query = "SELECT phase, device, base, object FROM accepted WHERE round = ?"
        for phase, device, base, name in self._db.execute(query, (number,)).fetchall():
            if self.store(device).has(name):
                accepted.setdefault(phase, {})[device] = base
            else:
                self._lost(number, phase, device)
        rows = self._db.execute("SELECT phase, devices FROM closed WHERE round = ? ORDER BY rowid", (number,))
        closed = {phase: tuple(names_in(devices)) for phase, devices in rows}
        roster = tuple(device for device, guest in saved_devices(guests).items() if guest.present)
        seconds = sum(crossed.seconds for crossed in self.crossed_before(number))
        return Recovered(number, attempt, tuple(names_in(cohort)), closed, accepted, roster, seconds=seconds)

    def _earlier(self, before: int) -> dict[str, tuple[int, dict[str, bytes]]]:
        """Of each device its newest accepted answers in rounds that are over."""
        found: dict[str, tuple[int, dict[str, bytes]]] = {}
        query = "SELECT device, round, phase, base FROM accepted WHERE round < ? ORDER BY round"
        for device, number, phase, base in self._db.execute(query, (before,)):
            known = found.get(device)
            found[device] = (number, {**(known[1] if known and known[0] == number else {}), phase: base})
        return found

    def _lost(self, round: int, phase: str, device: str) -> None:
        """Nothing is written here: whoever reads cannot wait for a locked index."""
        if (round, phase, device) in self.damaged:
            return
        log.error("the answer of %s to round %d %s is damaged; it will be asked again", device, round, phase)
        self.fallbacks["answer"] += 1
        self.damaged.append((round, phase, device))

    def forget_damaged(self) -> None:
        with self.index.transaction():
            for place in self.damaged:
                self._db.execute("DELETE FROM accepted WHERE round = ? AND phase = ? AND device = ?", place)
        self.damaged = []

    def _choose(self) -> list[Generation]:
        rows = self._generations()
        latest = [row for i, row in enumerate(rows) if i == 0 or row[1] != rows[i - 1][1]]  # of each round
        for i, row in enumerate(latest):
            if self.snapshots.has(bytes.fromhex(row[5])):
                if i:
                    self.fallbacks["snapshot"] += i
                    log.error(
                        "the snapshot of round %d is damaged; going back to that of round %d, whose answers are here",
                        latest[0][1], row[1],
                    )  # fmt: skip
                return latest[i::-1]
        if rows:
            lost = ", ".join(row[5] for row in latest)
            raise DamagedError(
                f"{self.snapshots.folder} has no snapshot that is whole, of {lost}; put one back from a backup; or "
                f"{way_on(self.folder)}"
            )
        return []

    def _generations(self) -> list[Generation]:
        """Newest first."""
        query = (
            "SELECT id, round, attempt, cohort, members, object FROM checkpoint ORDER BY round DESC, id DESC"
        )
        return self._db.execute(query).fetchall()

    def _forget_but(self, kept: Sequence[Generation]) -> None:
        marks = ", ".join("?" * len(kept))
        self._db.execute(f"DELETE FROM checkpoint WHERE id NOT IN ({marks})", [row[0] for row in kept])
        oldest = (min(row[1] for row in kept),)
        for table in ("closed", "crossed"):
            self._db.execute(f"DELETE FROM {table} WHERE round < ?", oldest)
        # Of each device the newest verdicts stay: it repeats its answer until it has heard them.
        newest = "(SELECT device, MAX(round) FROM accepted GROUP BY device)"
        self._db.execute(f"DELETE FROM accepted WHERE round < ? AND (device, round) NOT IN {newest}", oldest)

    def _prune(self) -> None:
        """Objects that no row names any more."""
        self.snapshots.keep({bytes.fromhex(row[5]) for row in self._generations()})
        oldest = min((row[1] for row in self._generations()), default=0)
        rows = self._db.execute("SELECT object FROM accepted WHERE round >= ?", (oldest,))
        kept = {bytes(row[0]) for row in rows}
        for folder in (self.folder / "updates").glob("*"):
            self.store(folder.name).keep(kept)


def worth_keeping(rows: Sequence[Generation]) -> list[Generation]:
    """Of each round the last attempt, back to the first snapshot that is another than the newest."""
    kept: list[Generation] = []
    for row in rows:
        if kept and row[1] == kept[-1][1]:
            continue
        if len(kept) == GENERATIONS or (kept and kept[-1][5] != kept[0][5]):
            break
        kept.append(row)
    return kept
