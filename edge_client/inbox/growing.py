"""Training on data that grow: before a round's training begins, the list of its samples is stored on the disk.

If a process is killed during training, the next process finds the list of the round's samples on the disk and
computes the update that the killed process would have computed. Samples that were added after the start of the round
are used from the next round on.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

from protofleet.edge_client.data.inbox.listing import Inbox, Listing, counts_of, held_out
from protofleet.edge_client.data.inbox.shard import as_arrays, as_listing, samples_of
from protofleet.edge_client.data.scaling import SampleKind
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import TensorSamples
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.job import Job, Metrics
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.messages import Arrays

# A round uses the list of a hello only if the hello was sent at least this many seconds before the round began.
LEAD_SECONDS: Final = 1.0

log = logging.getLogger("protofleet.device")


class Own(Splits, Protocol):
    """The device's own data, without the inbox, and the kind of these data."""

    @property
    def kind(self) -> SampleKind: ...


class Trainer(Protocol):
    @property
    def data(self) -> Own: ...
    def learn_from(self, listing: Arrays) -> None: ...
    def start(self, plan: Plan) -> Job: ...


@dataclass(frozen=True)
class GrowingLabels:
    """The labels of a device's data, without the samples."""

    domain: str
    classes: int
    names: tuple[str, ...]
    train: TensorSamples
    validation: TensorSamples
    test: TensorSamples


class GrowingData:
    """The data of a device with an inbox, with the list of samples of the current round.

    The device trains on these data and reports them in its updates.
    """

    def __init__(
        self, trainer: Trainer, inbox: Inbox, settings: DataSettings, state: DeviceState,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._trainer, self._inbox, self._settings, self._state = trainer, inbox, settings, state
        self._base = trainer.data
        self.announced: Listing = inbox.look()  # the inbox's samples that the last hello reported
        self.fixed: Listing = self.announced  # the inbox's samples that the current round uses
        self._clock, self._told_at = clock, -math.inf
        log.info("inbox: %d samples at the start", len(self.announced))

    @property
    def look_seconds(self) -> float:
        """Return the seconds between two looks into the inbox."""
        return self._settings.inbox_seconds

    @property
    def for_hellos(self) -> Announced:
        """Return the data for hellos. The list of the inbox's samples is always the list in `announced`."""
        return Announced(self)

    @property
    def domain(self) -> str:
        return self._base.domain

    @property
    def classes(self) -> int:
        return self._base.classes

    @property
    def names(self) -> tuple[str, ...]:
        return self._base.names

    @property
    def train(self) -> TensorSamples:
        """Return the training labels of the current round, but not more labels than the last hello announced.

        So an update never reports more samples than the hello, even if files were removed from the inbox.
        """
        fixed, told = self.with_labels(self.fixed).train, self.with_labels(self.announced).train
        return TensorSamples(fixed.x, fixed.y[: len(told.y)])

    @property
    def validation(self) -> TensorSamples:
        return self.with_labels(self.fixed).validation

    @property
    def test(self) -> TensorSamples:
        return self.with_labels(self.fixed).test

    def with_labels(self, listing: Listing) -> GrowingLabels:
        """Return the labels of the device's own data and of the samples in this list, for hellos and for counts."""
        labels: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
        for entry in listing:
            part = held_out(entry, self._settings.own_test, self._settings.validation)
            labels[part].append(entry.label)

        def more(part: Tensor, own: list[int]) -> TensorSamples:
            y = torch.cat([part.cpu(), torch.tensor(own, dtype=torch.int64)])
            return TensorSamples(torch.empty(0), y)

        base = self._base
        return GrowingLabels(
            base.domain, base.classes, base.names, more(base.train.y, labels["train"]),
            more(base.validation.y, labels["validation"]), more(base.test.y, labels["test"]),
        )  # fmt: skip

    def look(self) -> Listing:
        """Return the present list of the inbox, and remove stored samples that no list needs any more.

        Call this on the worker's thread.
        """
        found = self._inbox.look()
        needed = {*found, *self.announced, *self.fixed, *self._previous()}
        self._inbox.samples.keep_only({entry.sha256 for entry in needed})
        return found

    def announce(self, listing: Listing) -> None:
        """Make this list the announced list; the caller sends a hello afterwards."""
        new, old = counts_of(listing, self.names), counts_of(self.announced, self.names)
        words = ", ".join(f"{name} {new[name] - old[name]:+d}" for name in new if new[name] != old[name])
        log.info(
            "inbox: the list of samples changes from the next round on (%s); %d samples in all",
            words or "other files",
            len(listing),
        )
        self.announced, self._told_at = listing, self._clock()

    def start(self, plan: Plan) -> Job:
        """Start the job of a run with the saved list of samples, or with the announced list if no list was saved."""
        saved = self._state.saved.inputs
        self.fixed = as_listing(self._state.store.load(bytes.fromhex(saved))) if saved else self.announced
        self._trainer.learn_from(as_arrays(self.fixed))
        return GrowingJob(self, lambda: self._trainer.start(plan))

    def begin_round(self, number: int) -> bool:
        """Choose the list of samples for a round; return whether the list differs from that of the last round.

        All phases of one round use the same list.
        """
        if self._state.saved.inputs and self._state.saved.inputs_round == number:
            return False
        before = self.fixed
        # If the last hello was sent just now, the coordinator may have begun this round before the hello arrived.
        # Then this round keeps the earlier list, and the next round uses the list of the hello.
        if self._clock() - self._told_at >= LEAD_SECONDS:
            self.fixed = self.announced
        self._state.fix_inputs(number, as_arrays(self.fixed))
        if self.fixed == before:
            return False
        self._trainer.learn_from(as_arrays(self.fixed))
        return True

    def _previous(self) -> Listing:
        """Return the previous round's list, because the update for that round may have to be computed again."""
        name = self._state.previous_inputs
        known = name and self._state.store.has(bytes.fromhex(name))
        return as_listing(self._state.store.load(bytes.fromhex(name))) if known else ()


class Announced:
    """The data that a device describes in its hellos. They have the labels of the last announced list."""

    def __init__(self, data: GrowingData) -> None:
        self._data = data
        self.domain, self.classes, self.names = data.domain, data.classes, data.names

    @property
    def train(self) -> TensorSamples:
        return self._data.with_labels(self._data.announced).train

    @property
    def validation(self) -> TensorSamples:
        return self._data.with_labels(self._data.announced).validation

    @property
    def test(self) -> TensorSamples:
        return self._data.with_labels(self._data.announced).test


class GrowingJob:
    """A job on data that grow.

    When the data have changed, the job starts again from its state, in the same way as after a reboot.
    """

    def __init__(self, data: GrowingData, start: Callable[[], Job]) -> None:
        self._data, self._start, self._job = data, start, start()

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        if self._data.begin_round(number):
            state = self._job.state()
            self._job = self._start()
            if state:
                self._job.restore(state)
        return self._job.run(phase, number, received)

    def state(self) -> Arrays:
        return self._job.state()

    def restore(self, state: Arrays) -> None:
        self._job.restore(state)


def growing_data(trainer: Trainer, settings: DataSettings, state: DeviceState) -> GrowingData | None:
    """Return the growing data of a device, or None for a device without an inbox.

    Raise SettingsError if the inbox is not a folder, or if the names of the classes are unknown.
    """
    if not settings.inbox:
        return None
    folder = Path(settings.inbox).expanduser()
    if not folder.is_dir():
        raise SettingsError(f"data.inbox is {settings.inbox!r}, but there is no such folder; make the folder")
    if not trainer.data.names:
        raise SettingsError(
            f"data.inbox is {settings.inbox!r}, and {settings.source} does not name its classes; "
            "list the names of the classes in data.classes"
        )
    samples = samples_of(settings, state.folder, state.disk)
    inbox = Inbox(folder, trainer.data.names, settings.input_shape, samples, trainer.data.kind)
    return GrowingData(trainer, inbox, settings, state)
