"""The data that survive a coordinator: snapshots at the starts of rounds, the cohorts, and accepted updates.

An update counts as accepted only after its bytes and its row are on the disk. One SQLite file is the index.
Tensors are objects next to the index, named by their hashes. `recover` returns exactly the data that a replay
needs. Two different checkpoints are kept: if the newest snapshot is damaged, the replay begins one round
earlier, and the updates of that round are still on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from protofleet.coordinator.round.events import NOBODY_LEFT, EndEarly, Recovered, SaveResult, SentTask
from protofleet.coordinator.spool.answer_log import AnswerLog, AnswerPlace, DeviceAnswers
from protofleet.coordinator.spool.broadcast_chain import ChainLink
from protofleet.coordinator.spool.columns import SavedDevice, members_in, names_in, saved_devices
from protofleet.coordinator.spool.device_time import DeviceTime
from protofleet.coordinator.spool.generations import generation_in
from protofleet.coordinator.spool.index import FencedError, Index, RunMismatchError, how_to_go_on
from protofleet.coordinator.spool.origin import START, Origin
from protofleet.coordinator.spool.small_answers import Memory
from protofleet.coordinator.spool.spent import SpentBytes
from protofleet.coordinator.spool.traffic import RoundTraffic, read_traffic
from protofleet.methods.contract.base import Member
from protofleet.protocol.storage.disk import Disk, is_full, is_locked
from protofleet.protocol.storage.store import DamagedError, ObjectStore
from protofleet.protocol.wire.class_names import ClassNames
from protofleet.protocol.wire.messages import Arrays, Manifest

__all__ = ["Accepted", "FencedError", "RunMismatchError", "Spool", "members_in", "names_in"]

log = logging.getLogger("protofleet.coordinator")

# Largest number of checkpoints that are kept. Fewer are kept if two of them have different snapshots.
MOST_CHECKPOINTS: Final = 3
MOST_COMMANDS: Final = 1000  # Largest number of commands of operators that are kept.
# Largest number of kept commands of one operator through the broker, who cannot displace those of the others.
MOST_OF_ONE: Final = 200
Checkpoint: TypeAlias = tuple[int, int, int, str, str, str]  # A row of the table `checkpoint`.


@dataclass(frozen=True, slots=True)
class Accepted:
    device: str
    base: bytes
    object: bytes
    examples: int
    metrics: Mapping[str, float]
    # Age of the update's task, in rounds; above 0 only for a late update of a buffered round.
    staleness: int = 0


@dataclass(frozen=True)
class SavedRound:
    """A saved round, with the members and the state with which it began."""

    recovered: Recovered
    members: Mapping[str, Member]
    state: Arrays


@dataclass(frozen=True, slots=True)
class AskedBroadcast:
    """A broadcast that was sent with a task of this run."""

    number: int  # Number of the broadcast, counted from 1 over the whole run.
    round: int


@dataclass(frozen=True, slots=True)
class LastAnswer:
    """The newest accepted update of a device."""

    round: int
    base: bytes
    boot: int
    holds: bool  # True if the device has ever reported the objects that it holds.
    number: int  # Number of the update's broadcast, counted from 1 over the whole run.


class Spool:
    """The folder of one run. A simulation sets `durable=False`, and then no file is synced to the disk."""

    def __init__(self, folder: Path, durable: bool = True, disk: Disk | None = None) -> None:
        self.folder, self.disk = folder, disk or Disk(durable)
        # If the disk is full now, the index raises the error.
        with contextlib.suppress(OSError):
            self.disk.make(folder)
        self.snapshots = ObjectStore(folder / "snapshots", disk=self.disk, within=folder)
        # Broadcasts need not be durable, because a replay makes the same broadcasts again.
        self.broadcasts = ObjectStore(folder / "broadcasts", durable=False, disk=self.disk, within=folder)
        # The next broadcasts of a run with [codec.down] are coded against these objects, so they must be durable.
        self.chain_store = ObjectStore(folder / "chain", disk=self.disk, within=folder)
        self._stores: dict[str, DeviceAnswers] = {}
        self.index = Index(folder, self.disk)
        self._db, self.device_time = self.index.db, DeviceTime(self.index)
        # Number of devices of the run; 0 until the first round begins.
        self.fleet_size = self._saved_fleet_size()
        self.memory = Memory()  # Memory for small updates that are still incomplete.
        self._log = AnswerLog(folder / "answers", self.disk, self._places(), self.memory)
        # Kind of data -> number of times that damaged data were found and replaced.
        self.fallbacks = Counter({"index": int(self.index.restored_from_copy)})
        # Function that returns the open round and the traffic of this round. The code that counts the traffic sets
        # this attribute.
        self.open_round_traffic: Callable[[], tuple[int, RoundTraffic] | None] = lambda: None
        self.spent: SpentBytes | None = None  # Bytes of each device, if the run has a budget.
        self._saved_traffic: tuple[int, str] = (0, "")  # The round and the traffic that were saved last.
        # Device -> object of its late update, which is not accepted yet and waits for the next buffered round.
        self.waiting: dict[str, bytes] = {}
        # Round, phase and device of accepted updates that are damaged. These updates are not used any more.
        self.damaged_answers: list[tuple[int, str, str]] = []
        self._reports_held_objects: set[str] = set()  # Devices that have reported the objects that they hold.
        # The newest checkpoint with an undamaged snapshot, and all later checkpoints.
        self._usable = self._usable_checkpoints()

    def store(self, device: str) -> ObjectStore:
        if device not in self._stores:
            folder = self.folder / "updates" / device
            self._stores[device] = DeviceAnswers(device, folder, self._log, self.disk)
        return self._stores[device]

    def start_run(
        self, name: str, settings: str, clock: int, least: int = 0, exactly: int | None = None
    ) -> int:
        """Claim the folder and return the new epoch.

        The new epoch is above every earlier epoch, even if the clock was set back. With `exactly`, it is this one.
        """
        epoch = self.index.claim(name, settings, clock, least, exactly)
        self._prune_again()
        return epoch

    def save(
        self, round: int, attempt: int, cohort: Sequence[str], members: Mapping[str, Member], state: Arrays,
        roster: Collection[str] = (), domains: Mapping[str, str] | None = None, fleet: int = 0,
        alone: bool = False,
    ) -> None:  # fmt: skip
        """Save a new checkpoint, and delete data that are older than the previous checkpoint.

        The previous checkpoint is kept with its updates. `fleet` is the number of devices of the run. Only the
        first checkpoint stores this number, so that every round and every replay uses the same number. If `alone`
        is True, delete all earlier checkpoints, because they hold the answer of a device that was removed.
        """
        # The snapshot needs space, and the broadcast that is made from the snapshot needs space too.
        self.require_space(2 * sum(array.nbytes for array in state.values()))
        name = self.snapshots.put_once(state).object.hex()
        rows = [
            [m.device, m.examples, list(m.counts), (domains or {}).get(m.device, ""), m.device in roster]
            for m in members.values()
        ]
        with self._transaction(self.index.last_transaction):
            newest = self._db.execute("SELECT COALESCE(MAX(id), 0) FROM checkpoint").fetchone()[0]
            made = (newest + 1, round, attempt, json.dumps(list(cohort)), json.dumps(rows), name)
            self.index.put("checkpoint", *made)
            if fleet and not self.fleet_size:
                self.index.put("fleet", 1, fleet)
            self._delete_all_but([made] if alone else checkpoints_to_keep(self._checkpoints()))
            self._save_traffic()
        self._usable = [made]
        self.fleet_size = self.fleet_size or fleet
        self._log.begin_file()
        self._prune()
        if alone:
            for folder in (self.folder / "updates").glob("*"):
                self.disk.sync(folder)  # Otherwise the deleted answer could come back after a power cut.

    def put_broadcast(self, arrays: Arrays, block: int) -> Manifest:
        """Save a broadcast. If the snapshot has the same bytes, as with FedAvg, one file serves as both."""
        return self.broadcasts.put_once(arrays, block, self.snapshots)

    def put_coded_broadcast(self, arrays: Arrays, block: int) -> Manifest:
        """Save a broadcast of the chain. If the chain's store has the same bytes, one file serves as both."""
        return self.broadcasts.put_once(arrays, block, self.chain_store)

    @property
    def newest_round(self) -> int:
        """Return the last round that has begun according to this folder; 0 if no round has begun."""
        # When the run goes back to a round, the checkpoints of the later rounds are deleted. So an update that was
        # put aside in a round shows that the next round had begun.
        begun = "SELECT round FROM checkpoint UNION SELECT round + 1 FROM aside WHERE device != ''"
        found: int = self._db.execute(f"SELECT COALESCE(MAX(round), 0) FROM ({begun})").fetchone()[0]
        return found

    @property
    def newest_attempt(self) -> int:
        """Return the attempt number of the newest checkpoint."""
        rows = self._checkpoints()
        return rows[0][2] if rows else 0

    def server_state(self) -> Arrays | None:
        """Return the state of the server half from the newest undamaged snapshot; None if nothing was saved."""
        return self.snapshots.open(bytes.fromhex(self._usable[0][5])) if self._usable else None

    def start_from(self, origin: Origin) -> None:
        """Store the snapshot of another run with which this run starts, unless the run has begun already."""
        if self._usable or self.origin() == origin:
            return
        with self._transaction():
            self.index.put("origin", 1, origin.run, origin.round, origin.object)

    def origin(self) -> Origin | None:
        row = self._db.execute("SELECT run, round, object FROM origin").fetchone()
        return Origin(*row) if row else None

    def first_state(self) -> tuple[Arrays, Origin] | None:
        """Return the state of another run with which this run has to start, if it has not begun yet."""
        if self._usable or (origin := self.origin()) is None:
            return None
        store, name = (
            ObjectStore(self.folder / START, disk=self.disk, make=False),
            bytes.fromhex(origin.object),
        )
        if not store.has(name):
            raise DamagedError(
                f"the snapshot of {origin.run} in {store.folder} is missing or damaged; put this folder back from a "
                "backup, or submit the run again under another name"
            )
        return store.open(name), origin

    def accept(
        self, round: int, phase: str, answer: Accepted, last_heard: tuple[int, int] = (0, 0), holder: str = ""
    ) -> None:
        """Accept an update that counts in this round.

        Store `last_heard`, the boot and sequence number of the sender's newest message.
        Later messages of the sender must have higher numbers. The update and the numbers are written in one
        transaction, either by the next `commit` or by an earlier write.
        """
        self.index.defer(lambda: self._write_accepted(round, phase, answer, last_heard, holder))

    def _write_accepted(
        self, round: int, phase: str, answer: Accepted, last_heard: tuple[int, int], holder: str
    ) -> None:
        metrics = json.dumps(dict(answer.metrics), allow_nan=False)
        row = (answer.device, answer.base, answer.object, answer.examples, metrics)
        self.index.put("accepted", round, phase, *row)
        if answer.staleness:
            self.index.put("late", round, phase, answer.device, answer.staleness)
        else:
            place = (round, phase, answer.device)
            self._db.execute("DELETE FROM late WHERE round = ? AND phase = ? AND device = ?", place)
        if found := self._log.place(answer.device, answer.object):
            self.index.put("places", answer.device, answer.object, *found)
        self.index.put("heard", answer.device, *last_heard)
        self.index.put("holders", answer.device, holder, last_heard[0])
        self._note_broadcast(round - answer.staleness, answer, last_heard[0])

    def open_task(self, task: SentTask, oldest: int) -> None:
        """Store the training task of a buffered round; the next transaction makes this durable."""

        def write() -> None:
            self.index.put(
                "tasks", task.round, task.phase, task.base, json.dumps(task.cohort, allow_nan=False)
            )
            self._db.execute("DELETE FROM tasks WHERE round < ?", (oldest,))
            self._number_broadcast(task.round, task.base)

        self.index.defer(write)

    def _tasks(self) -> tuple[SentTask, ...]:
        rows = self._db.execute("SELECT round, phase, base, cohort FROM tasks ORDER BY round")
        return tuple(
            SentTask(number, phase, base, tuple(names_in(cohort))) for number, phase, base, cohort in rows
        )

    @property
    def has_uncommitted(self) -> bool:
        return self.index.has_deferred

    def commit(self) -> None:
        """Commit the updates that were accepted since the last transaction."""
        if self.index.has_deferred:
            with self._transaction():
                self._save_traffic()

    @contextlib.contextmanager
    def _transaction(self, kind: Callable[[], AbstractContextManager[None]] | None = None) -> Iterator[None]:
        """Open a transaction of the index. `kind` is the kind of transaction; by default an ordinary transaction."""
        before = self._saved_traffic
        try:
            with (kind or self.index.transaction)():
                yield
                if self.index.has_deferred:  # The bytes of updates must be durable before their rows.
                    self._log.sync()
        except BaseException:
            self._saved_traffic = before
            if self.spent:
                self.spent.rolled_back()
            raise
        if self.spent:
            self.spent.committed()

    def last_heard(self) -> dict[str, tuple[int, int, str]]:
        """Return the boot, the newest sequence number and the holder of each sender's last accepted update.

        The holder identifies the keys of the sender at that time. It is "" if an earlier version stored the update.
        """
        rows = self._db.execute(
            "SELECT sender, boot, sequence, COALESCE(holder, '') FROM heard LEFT JOIN holders USING (sender, boot)"
        )
        return {sender: (boot, sequence, holder) for sender, boot, sequence, holder in rows}

    def note_holder(self, device: str, round: int, holder: str) -> None:
        """Store the holder of an answer that the server half keeps; the next transaction makes this durable."""
        self.index.defer(lambda: self.index.put("answer_holders", device, round, holder))

    def holders(self, before: int) -> dict[str, str]:
        """Return the holder of each device's newest answer to a round before the round `before`."""
        query = "SELECT device, holder FROM answer_holders WHERE round < ? ORDER BY round"
        return dict(self._db.execute(query, (before,)))

    def discard_answer(self, device: str, object_name: bytes) -> None:
        """Delete the object of a refused update, because refused updates would fill the disk.

        If the same object belongs to an accepted update, it is kept.
        """
        query = "SELECT 1 FROM accepted WHERE device = ? AND object = ?"
        if self._db.execute(query, (device, object_name)).fetchone() is None:
            self.store(device).drop(object_name)

    def bytes_of_answers(self) -> int:
        """Return the bytes that updates take on the disk. An unfinished update counts with its full size."""
        files = (self.folder / "updates").glob("*/*")
        return self._log.size + sum(path.stat().st_size for path in files)

    def bytes_of_unfinished(self, device: str) -> int:
        """Return the number of received bytes of a device's unfinished update."""
        parts = (self.folder / "updates" / device).glob("*.part")
        return sum(path.stat().st_blocks * 512 for path in parts)

    @property
    def bytes_of_a_save(self) -> int:
        """Return the bytes that the next save will probably need; 0 if nothing was saved yet."""
        return 2 * self.snapshots.size(bytes.fromhex(self._usable[-1][5])) if self._usable else 0

    def free_space(self) -> None:
        """Delete the previous checkpoint with its updates, to free space on the disk.

        Until the next save there is only one checkpoint.
        """
        rows = self._checkpoints()
        kept = [row for row in rows if row[1] >= self._usable[0][1]] if self._usable else rows
        if len(kept) == len(rows):
            return
        # The disk may be too full even to delete rows.
        with contextlib.suppress(OSError, sqlite3.OperationalError):
            with self._transaction():
                self._delete_all_but(kept)
            self._prune()

    def require_space(self, size: int) -> None:
        """Make room for `size` bytes, or raise the error of a full disk.

        This is called before a save, so that no part of the save is written to a full disk.
        """
        if self.disk.free_bytes(self.folder) < size:
            self.free_space()
        if (room := self.disk.free_bytes(self.folder)) < size:
            raise OSError(
                errno.ENOSPC, f"{size} bytes are needed, but only {room} bytes are free", str(self.folder)
            )

    def check_claim(self) -> None:
        """Raise FencedError if another coordinator has taken over the folder.

        After that, this process must not delete or overwrite files, because they belong to the other
        coordinator.
        """
        self.index.check_claim()

    def check_in_place(self) -> None:
        self.index.check_in_place()

    def close_phase(self, round: int, phase: str, devices: Sequence[str]) -> None:
        with self._transaction():
            self.index.put("closed", round, phase, json.dumps(devices))
            self._save_traffic()

    def note_used(self, round: int, phase: str, devices: Collection[str]) -> None:
        """Record that the method has used the updates of these devices; the next transaction stores this.

        For each device, the rows of the last three rounds are kept, because a round may be rolled back.
        """
        oldest = "SELECT DISTINCT round FROM used WHERE device = ? ORDER BY round DESC LIMIT 1 OFFSET 2"

        def write() -> None:
            for device in sorted(devices):
                self.index.put("used", device, round, phase)
                self._db.execute(
                    f"DELETE FROM used WHERE device = ? AND round < ({oldest})", (device, device)
                )

        self.index.defer(write)

    def newest_used(self, device: str) -> tuple[int, str] | None:
        """Return the round and the phase of the newest update of a device that the method has used."""
        query = "SELECT round, phase FROM used WHERE device = ? ORDER BY round DESC, rowid DESC LIMIT 1"
        found: tuple[int, str] | None = self._db.execute(query, (device,)).fetchone()
        return found

    def save_chain(self, links: Sequence[ChainLink]) -> None:
        """Save the chain of broadcasts; the next transaction stores the chain."""

        def write() -> None:
            self._db.execute("DELETE FROM chain")
            for place, one in enumerate(links):
                self.index.put(
                    "chain", place, one.round, one.phase, one.base, one.reference, one.step, one.exact
                )

        self.index.defer(write)

    def chain(self) -> list[ChainLink]:
        query = "SELECT round, phase, base, reference, step, exact FROM chain ORDER BY place"
        return [ChainLink(*row) for row in self._db.execute(query)]

    def bases(self) -> set[bytes]:
        """Return the broadcasts from which the stored updates, and late updates that may arrive, are computed."""
        rows = self._db.execute("SELECT base FROM accepted UNION SELECT base FROM tasks")
        return {base for (base,) in rows if base}

    def judge(self, round: int, accuracy: float, words: str, oldest: int) -> None:
        """Store the data for policy.stop in the next transaction, which is the save of the next round."""

        def write() -> None:
            self.index.put("judged", round, repr(accuracy), words)
            self._db.execute("DELETE FROM judged WHERE round < ?", (oldest,))

        self.index.defer(write)

    def _judged(self) -> tuple[dict[int, float], tuple[int, str] | None]:
        """Return the validation accuracy by round, and the end of the training by policy.stop.

        The end is the round and the reason, or None if policy.stop has not ended the training.
        """
        rows = self._db.execute("SELECT round, accuracy, words FROM judged ORDER BY round").fetchall()
        stopped = [(number, words) for number, _, words in rows if words]
        return {number: float(accuracy) for number, accuracy, _ in rows}, stopped[-1] if stopped else None

    def rollback(self, round: int) -> None:
        """Delete the closed phases of a round, so that the round begins again.

        Accepted updates stay valid for devices that receive the same task again.
        """
        with self._transaction():
            self._db.execute("DELETE FROM closed WHERE round = ?", (round,))
            self._db.execute("DELETE FROM used WHERE round = ?", (round,))
            self._save_traffic()

    def _note_broadcast(self, round: int, answer: Accepted, boot: int) -> None:
        """Store the number of the update's broadcast, and record the update as the last update of its device."""
        if not answer.base:
            return
        self._number_broadcast(round, answer.base)
        self.index.put(
            "answered",
            answer.device,
            round,
            answer.base,
            boot,
            int(answer.device in self._reports_held_objects),
        )

    def _number_broadcast(self, round: int, base: bytes) -> None:
        if base and self.asked_broadcast(base) is None:
            newest = self._db.execute("SELECT COALESCE(MAX(number), 0) FROM asked").fetchone()[0]
            self.index.put("asked", base, newest + 1, round)

    def note_held_objects(self, device: str, holds: Collection[bytes]) -> None:
        if holds:
            self._reports_held_objects.add(device)

    def asked_broadcast(self, base: bytes) -> AskedBroadcast | None:
        row = self._db.execute("SELECT number, round FROM asked WHERE base = ?", (base,)).fetchone()
        return AskedBroadcast(*row) if row else None

    @property
    def knows_all_broadcasts(self) -> bool:
        """Return whether the table of broadcasts has all broadcasts of the run.

        Some broadcasts are missing if an earlier version began the run, or if `skip_to` was called.
        """
        first = self._db.execute("SELECT MIN(round) FROM asked").fetchone()[0]
        return first == 1 or (first is None and self.newest_round <= 1)

    def last_answer(self, device: str) -> LastAnswer | None:
        query = "SELECT round, base, boot, holds FROM answered WHERE device = ?"
        row = self._db.execute(query, (device,)).fetchone()
        if row is None or (place := self.asked_broadcast(row[1])) is None:
            return None
        return LastAnswer(row[0], row[1], row[2], bool(row[3]), place.number)

    def answered_before_boot(self, device: str, boot: int) -> list[tuple[int, str, bytes]]:
        """Return (round, phase, base) for each accepted update in the device's newest round, the oldest update first.

        Return an empty list if `boot` is the last known boot, because the device was not started again.
        """
        heard = self._db.execute("SELECT boot FROM heard WHERE sender = ?", (device,)).fetchone()
        if heard is None or heard[0] == boot:
            return []
        query = (
            "SELECT round - COALESCE(staleness, 0), phase, base "
            "FROM accepted LEFT JOIN late USING (round, phase, device) "
            "WHERE device = ? AND round >= ? ORDER BY round, accepted.rowid"
        )
        # Devices have forgotten the updates of earlier generations.
        rows = self._db.execute(query, (device, generation_in(self.index)[1])).fetchall()
        return [(number, phase, base) for number, phase, base in rows if number == rows[-1][0]]

    def save_traffic(self) -> None:
        """Save the traffic of the open round. A full disk or a locked index does not raise an error here."""
        try:
            with self._transaction(self.index.undurable_transaction):
                self._save_traffic()
        except sqlite3.OperationalError as error:
            if not (is_full(error) or is_locked(error)):
                raise

    def _save_traffic(self) -> None:
        if self.spent:
            self.spent.write()
        if counted := self.open_round_traffic():
            row = counted[0], counted[1].text()
            if row != self._saved_traffic:
                self.index.put("crossed", row[0], self.index.epoch, row[1])
                self._saved_traffic = row

    def earlier_traffic(self, round: int) -> list[RoundTraffic]:
        """Return the traffic that each earlier process of this coordinator counted in that round."""
        query = "SELECT counts FROM crossed WHERE round = ? AND epoch != ? ORDER BY epoch"
        return [read_traffic(row[0]) for row in self._db.execute(query, (round, self.index.epoch))]

    def answers(self, round: int, phase: str) -> dict[str, Accepted]:
        rows = self._db.execute(
            "SELECT device, base, object, examples, metrics, COALESCE(staleness, 0) "
            "FROM accepted LEFT JOIN late USING (round, phase, device) WHERE round = ? AND phase = ?",
            (round, phase),
        )
        return {row[0]: Accepted(row[0], row[1], row[2], row[3], json.loads(row[4]), row[5]) for row in rows}

    def answers_of_round(self, round: int) -> Iterator[Accepted]:
        """Yield the accepted updates of all phases of a round."""
        for (phase,) in self._db.execute(
            "SELECT DISTINCT phase FROM accepted WHERE round = ?", (round,)
        ).fetchall():
            yield from self.answers(round, phase).values()

    def has_first_answer(self, round: int, bases: Collection[bytes]) -> bool:
        """Return whether a device has used one of these broadcasts for the first time in this round."""
        marks = ", ".join("?" * len(bases))
        used = f"SELECT device FROM accepted WHERE base IN ({marks}) AND round"
        query = f"{used} = ? AND device NOT IN ({used} < ?) LIMIT 1"
        return self._db.execute(query, (*bases, round, *bases, round)).fetchone() is not None

    def count_answers(self, round: int) -> int:
        """Return the number of accepted updates in all phases of a round."""
        query = "SELECT COUNT(*) FROM accepted WHERE round = ?"
        found: int = self._db.execute(query, (round,)).fetchone()[0]
        return found

    def has_other_answer(self, round: int, phase: str, device: str, base: bytes, name: bytes) -> bool:
        """Return whether the coordinator has accepted a different update of this device for the same task."""
        query = "SELECT round, staleness FROM late WHERE phase = ? AND device = ?"
        late: dict[int, int] = dict(self._db.execute(query, (phase, device)).fetchall())
        counted_in = next((number for number, age in late.items() if number - age == round), round)
        if counted_in == round and round in late:
            return False  # The update that counts in this round is for the task of an earlier round.
        query = "SELECT base, object FROM accepted WHERE round = ? AND phase = ? AND device = ?"
        row = self._db.execute(query, (counted_in, phase, device)).fetchone()
        return row is not None and row[0] == base and row[1] != name

    def recover(self) -> tuple[Recovered, dict[str, Member]] | None:
        """Return the data with which a replay begins, and the members.

        The data describe the first round of the replay and all later decisions. Return None if nothing was
        saved.
        """
        if not self._usable:
            return None
        first, *later = [self._recovered(row) for row in self._usable]
        aside, diverged = self._answers_put_aside()
        earlier = self._earlier_answers(first.round)
        judged, stopped = self._judged()
        recovered = replace(
            first,
            ahead=tuple(later),
            earlier=earlier,
            aside=aside,
            tried=self._answers_tried(),
            diverged=diverged,
            judged=judged,
            stopped=stopped,
            ended=self._ended(),
            ended_early=self.early_end(),
            tasks=self._tasks(),
        )
        return recovered, {name: saved.member for name, saved in self._saved_devices()}

    def saved_round(self, round: int) -> SavedRound | None:
        """Return a round as it was when its last phase was closed; None if the disk does not have it any more."""
        for row in self._checkpoints():
            if row[1] == round and self.snapshots.has(name := bytes.fromhex(row[5])):
                return SavedRound(self._recovered(row), members_in(row[4]), self.snapshots.open(name))
        return None

    def save_class_names(self, class_names: ClassNames) -> None:
        """Save the class names, so that the next coordinator of the run uses them."""
        with self._transaction():
            self.index.put(
                "named", 1, class_names.digest, json.dumps(list(class_names.names), allow_nan=False)
            )

    def _saved_fleet_size(self) -> int:
        row = self._db.execute("SELECT devices FROM fleet").fetchone()
        return int(row[0]) if row else 0

    def save_end(self, round: int, at: float) -> None:
        """Save the Unix time at which a round ended."""
        with self._transaction():
            self.index.put("ended", 1, round, int(at))

    def _ended(self) -> tuple[int, float]:
        row = self._db.execute("SELECT round, at FROM ended").fetchone()
        return (row[0], float(row[1])) if row else (0, 0.0)

    def end_early(self, end: EndEarly) -> None:
        """Store that the training ends before its last round; the next transaction makes this durable."""
        self.index.defer(lambda: self.index.put("ended_early", 1, end.round, end.words, end.by))

    def early_end(self) -> EndEarly | None:
        row = self._db.execute("SELECT round, words, cause FROM ended_early").fetchone()
        return EndEarly(*row) if row else None

    def save_pause(self, words: str) -> None:
        """Store the reason of an operator's pause, "" if the run goes on; the next transaction makes this durable."""
        self.index.defer(lambda: self.index.put("paused", 1, words))

    def paused(self) -> str:
        """Return why an operator has paused the run, or ""."""
        row = self._db.execute("SELECT words FROM paused").fetchone()
        return str(row[0]) if row else ""

    def save_total_rounds(self, rounds: int) -> None:
        """Store the number of rounds of the run; the next transaction makes this durable."""
        self.index.defer(lambda: self.index.put("total", 1, rounds))

    def total_rounds(self) -> int:
        """Return the number of rounds that an operator has set; 0 if it is the number in the plan."""
        row = self._db.execute("SELECT rounds FROM total").fetchone()
        return int(row[0]) if row else 0

    def save_result(self, command: SaveResult) -> None:
        """Store a command of an operator with its result; the next transaction makes this durable."""

        def write() -> None:
            number = self._db.execute("SELECT COALESCE(MAX(number), 0) + 1 FROM commands").fetchone()[0]
            c = command
            self.index.put("commands", number, c.id, c.at, c.operator, c.verb, c.verdict, c.words)
            self._db.execute("DELETE FROM commands WHERE number <= ?", (number - MOST_COMMANDS,))
            if c.sender is not None:
                self.index.put("sequences", c.operator, *c.sender)
                self._db.execute(
                    "DELETE FROM commands WHERE operator = ? AND number <= (SELECT number FROM commands "
                    "WHERE operator = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
                    (c.operator, c.operator, MOST_OF_ONE),
                )

        self.index.defer(write)

    def result_of(self, command: bytes) -> SaveResult | None:
        """Return the stored command with this id, and its result; None if there is no such command."""
        query = "SELECT id, at, operator, verb, verdict, words FROM commands WHERE id = ?"
        row = self._db.execute(query, (command,)).fetchone()
        return SaveResult(*row) if row else None

    def heard_operators(self) -> dict[str, tuple[int, int, str]]:
        """Return the boot, the newest sequence number and the holder of each operator, at its last stored command."""
        found = self._db.execute("SELECT operator, boot, newest, holder FROM sequences")
        return {name: (boot, newest, holder) for name, boot, newest, holder in found}

    def newest_numbers(self, verdict: str) -> tuple[int, int]:
        """Return the number of the newest command, and of the newest one with this verdict; 0 if there is none."""
        query = "SELECT MAX(number), MAX(CASE verdict WHEN ? THEN number END) FROM commands"
        newest, of_verdict = self._db.execute(query, (verdict,)).fetchone()
        return newest or 0, of_verdict or 0

    def newest_results(self, most: int) -> list[SaveResult]:
        """Return the newest stored commands of operators with their results, the newest first."""
        query = "SELECT id, at, operator, verb, verdict, words FROM commands ORDER BY number DESC LIMIT ?"
        return [SaveResult(*row) for row in self._db.execute(query, (most,))]

    def class_names(self) -> ClassNames | None:
        row = self._db.execute("SELECT digest, names FROM named").fetchone()
        return ClassNames(row[0], tuple(names_in(row[1]))) if row else None

    def put_aside(
        self, round: int, phase: str, devices: Sequence[str], aside: Sequence[str], reason: str,
        trial: bool = False, returned: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Go back to the start of a round: delete all later rounds, and do not use the updates of `aside` any more.

        If `trial` is True, also record that the updates of `aside` were left out as a trial. The updates of
        `returned` are used again.
        """
        with self._transaction():
            for table in ("checkpoint", "accepted", "closed", "answer_holders", "late", "tasks"):
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (round,))
            for table in ("judged", "used"):  # the replay of this round notes again which updates it uses
                self._db.execute(f"DELETE FROM {table} WHERE round >= ?", (round,))
            self._db.execute("DELETE FROM ended_early WHERE round >= ? AND cause = ?", (round, NOBODY_LEFT))
            this = "SELECT rowid FROM closed WHERE round = ? AND phase = ?"
            later = f"DELETE FROM closed WHERE rowid > ({this}) AND round = ?"
            self._db.execute(later, (round, phase, round))
            self.index.put("closed", round, phase, json.dumps(devices))
            for device in aside:
                self.index.put("aside", round, device, reason)
                if trial:
                    self.index.put("tried", round, device)
            for device in returned:
                self._db.execute("DELETE FROM aside WHERE round = ? AND device = ?", (round, device))
        self.index.keep_copy()
        self._usable = self._checkpoints()[:1]
        self._prune()

    def diverge(self, round: int, reason: str) -> None:
        with self._transaction():
            self.index.put("aside", round, "", reason)

    def _answers_put_aside(self) -> tuple[dict[int, tuple[str, ...]], str]:
        """Return the devices whose updates each round put aside, and why the run has diverged, or ""."""
        found: dict[int, tuple[str, ...]] = {}
        diverged = ""
        rows = self._db.execute("SELECT round, device, words FROM aside ORDER BY round")
        for number, device, reason in rows:
            if device:
                found[number] = (*found.get(number, ()), device)
            else:
                diverged = reason
        return found, diverged

    def _answers_tried(self) -> dict[int, tuple[str, ...]]:
        """Return the devices whose updates were left out in trials, by round."""
        found: dict[int, tuple[str, ...]] = {}
        for number, device in self._db.execute("SELECT round, device FROM tried ORDER BY rowid"):
            found[number] = (*found.get(number, ()), device)
        return found

    def domains(self) -> dict[str, str]:
        """Return the domains of the members that `recover` returns."""
        return {name: saved.domain for name, saved in self._saved_devices() if saved.domain}

    def _saved_devices(self) -> Iterator[tuple[str, SavedDevice]]:
        """Return the saved devices of all usable checkpoints, the newest checkpoint first.

        If the result is made into a dictionary, the dictionary has the data of the oldest checkpoint, at which the
        replay begins.
        """
        for row in reversed(self._usable):
            yield from saved_devices(row[4]).items()

    @property
    def final_round(self) -> int:
        """Return the round number of the final evaluation, from the plan of this run or from an operator."""
        if total := self.total_rounds():
            return total + 1
        row = self._db.execute("SELECT settings FROM run").fetchone()
        return int(json.loads(row[0])["rounds"]) + 1 if row else 0

    def require_later_round(self, round: int) -> None:
        """Raise ValueError if this folder cannot go on in round `round`."""
        last = self.final_round
        if self.newest_round >= last:
            raise ValueError(
                f"{self.folder} has the final evaluation, round {last}, so no later round is left. "
                "If the run is not finished, start its coordinator as usual; a finished run needs nothing"
            )
        if not self.newest_round < round <= last:
            raise ValueError(
                f"--from-round is {round}, it must be above {self.newest_round} (the last round in "
                f"{self.folder}) and at most {last} (the final evaluation)"
            )

    def skip_to(self, round: int) -> None:
        """Go on from an older copy: use its state as the state at the start of a later round."""
        self.require_later_round(round)
        _, _, _, cohort, members, name = self._usable[-1]
        with self._transaction():
            made = (self._checkpoints()[0][0] + 1, round, 0, cohort, members, name)
            self.index.put("checkpoint", *made)
            self._delete_all_but([made])
            # The rows do not list the broadcasts that devices have received since this copy was made.
            for table in ("asked", "answered", "tasks"):
                self._db.execute(f"DELETE FROM {table}")
        self.index.keep_copy()
        self._usable = [made]
        self._prune()

    def close(self) -> None:
        self._log.close()
        self.index.close()

    def _recovered(self, row: Checkpoint) -> Recovered:
        _, number, attempt, cohort, members, _ = row
        accepted: dict[str, dict[str, bytes]] = {}
        query = "SELECT phase, device, base, object FROM accepted WHERE round = ?"
        for phase, device, base, name in self._db.execute(query, (number,)).fetchall():
            if self.store(device).has(name):
                accepted.setdefault(phase, {})[device] = base
            else:
                self._note_damaged_answer(number, phase, device)
        rows = self._db.execute("SELECT phase, devices FROM closed WHERE round = ? ORDER BY rowid", (number,))
        closed = {phase: tuple(names_in(devices)) for phase, devices in rows}
        roster = tuple(device for device, saved in saved_devices(members).items() if saved.present)
        seconds = sum(traffic.seconds for traffic in self.earlier_traffic(number))
        late = dict(
            self._db.execute("SELECT device, staleness FROM late WHERE round = ?", (number,)).fetchall()
        )
        return Recovered(
            number, attempt, tuple(names_in(cohort)), closed, accepted, roster, seconds=seconds, late=late
        )

    def _earlier_answers(self, before: int) -> dict[str, tuple[int, dict[str, bytes]]]:
        """Return for each device the round of its last tasks with accepted updates, and the bases of these updates.

        Only updates that count in a round before the round `before` are considered.
        """
        found: dict[str, tuple[int, dict[str, bytes]]] = {}
        query = (
            "SELECT device, round - COALESCE(staleness, 0), phase, base "
            "FROM accepted LEFT JOIN late USING (round, phase, device) WHERE round < ? ORDER BY round"
        )
        for device, number, phase, base in self._db.execute(query, (before,)):
            known = found.get(device)
            found[device] = (number, {**(known[1] if known and known[0] == number else {}), phase: base})
        return found

    def _note_damaged_answer(self, round: int, phase: str, device: str) -> None:
        """Record a damaged update in memory; its row is deleted later, because the index is being read now."""
        if (round, phase, device) in self.damaged_answers:
            return
        log.error(
            "the answer of %s to round %d %s is damaged; the device is asked again", device, round, phase
        )
        self.fallbacks["answer"] += 1
        self.damaged_answers.append((round, phase, device))

    def delete_damaged_answers(self) -> None:
        with self._transaction():
            for place in self.damaged_answers:
                self._db.execute("DELETE FROM accepted WHERE round = ? AND phase = ? AND device = ?", place)
        self.damaged_answers = []

    def _usable_checkpoints(self) -> list[Checkpoint]:
        rows = self._checkpoints()
        # Only the latest attempt at each round.
        latest = [row for i, row in enumerate(rows) if i == 0 or row[1] != rows[i - 1][1]]
        for i, row in enumerate(latest):
            if self.snapshots.has(bytes.fromhex(row[5])):
                if i:
                    self.fallbacks["snapshot"] += i
                    log.error(
                        "the snapshot of round %d is damaged; the run goes back to the snapshot of round %d and uses "
                        "the saved updates of that round",
                        latest[0][1], row[1],
                    )  # fmt: skip
                return latest[i::-1]
        if rows:
            lost = ", ".join(row[5] for row in latest)
            raise DamagedError(
                f"all snapshots in {self.snapshots.folder} are damaged or missing: {lost}; put one of them back from "
                "a backup; or "
                f"{how_to_go_on(self.folder)}"
            )
        return []

    def _checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints, the newest first."""
        query = (
            "SELECT id, round, attempt, cohort, members, object FROM checkpoint ORDER BY round DESC, id DESC"
        )
        return self._db.execute(query).fetchall()

    def _delete_all_but(self, kept: Sequence[Checkpoint]) -> None:
        marks = ", ".join("?" * len(kept))
        self._db.execute(f"DELETE FROM checkpoint WHERE id NOT IN ({marks})", [row[0] for row in kept])
        oldest = (min(row[1] for row in kept),)
        for table in ("closed", "crossed"):
            self._db.execute(f"DELETE FROM {table} WHERE round < ?", oldest)
        # The newest updates of each device stay in the table, because a device repeats its newest update
        # until it has a receipt.
        newest = "(SELECT device, MAX(round) FROM accepted GROUP BY device)"
        self._db.execute(f"DELETE FROM accepted WHERE round < ? AND (device, round) NOT IN {newest}", oldest)
        accepted = "(SELECT round, phase, device FROM accepted)"
        self._db.execute(f"DELETE FROM late WHERE (round, phase, device) NOT IN {accepted}")
        wanted = "(SELECT device, object FROM accepted WHERE round >= ?)"
        self._db.execute(f"DELETE FROM places WHERE (device, object) NOT IN {wanted}", oldest)

    def _prune(self) -> None:
        """Delete the objects that no row of the index names any more."""
        kept: dict[str, set[bytes]] = {}
        for device, name in self._prune_snapshots():
            kept.setdefault(device, set()).add(name)
        for folder in (self.folder / "updates").glob("*"):
            self.store(folder.name).keep(kept.get(folder.name, set()))

    def _prune_snapshots(self) -> set[tuple[str, bytes]]:
        """Delete old snapshots and old files of small updates, and return the updates that are kept."""
        self.snapshots.keep({bytes.fromhex(row[5]) for row in self._checkpoints()})
        oldest = min((row[1] for row in self._checkpoints()), default=0)
        rows = self._db.execute("SELECT device, object FROM accepted WHERE round >= ?", (oldest,))
        kept = set(rows.fetchall()) | {(device, name) for device, name in self.waiting.items()}
        self._log.keep(kept)
        return kept

    def _prune_again(self) -> None:
        """Delete what an earlier process did not delete, because it died after its last save, or its power failed.

        A complete update that was not accepted yet stays, because its device offers it again.
        """
        kept = self._prune_snapshots()
        for device, name in self._db.execute("SELECT device, object FROM accepted").fetchall():
            if (device, name) not in kept and self.store(device).has(name):
                self.store(device).drop(name)

    def _places(self) -> list[tuple[str, bytes, AnswerPlace]]:
        """Return the places of updates in the log of small updates, as the index stores them."""
        rows = self._db.execute("SELECT device, object, file, start, size FROM places").fetchall()
        return [(device, name, AnswerPlace(file, start, size)) for device, name, file, start, size in rows]


def checkpoints_to_keep(rows: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the last attempt at each round, the newest first.

    The list ends with the first attempt whose snapshot differs from the newest snapshot, and has at most
    MOST_CHECKPOINTS entries.
    """
    kept: list[Checkpoint] = []
    for row in rows:
        if kept and row[1] == kept[-1][1]:
            continue
        if len(kept) == MOST_CHECKPOINTS or (kept and kept[-1][5] != kept[0][5]):
            break
        kept.append(row)
    return kept
