"""Training on data that grow: each round's samples are fixed and on the disk before its training begins.

A process that is killed during training finds the list of samples of its round, and gives the same bits.
Samples that have come since then count from the next round on.
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

LEAD_SECONDS: Final = 1.0  # least seconds from a hello to the first round that uses what the hello stated

log = logging.getLogger("protofleet.device")


class Own(Splits, Protocol):
    """A device's own data, whose kind of samples is known."""

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
    """The data of a device with an inbox, with the list of samples of its current round.

    The device trains on these data and reports them in its answers.
    """

    def __init__(
        self, trainer: Trainer, inbox: Inbox, settings: DataSettings, state: DeviceState,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._trainer, self._inbox, self._settings, self._state = trainer, inbox, settings, state
        self._base = trainer.data
        self.announced: Listing = inbox.look()  # the list that the last hello announced
        self.fixed: Listing = self.announced  # the list that the current round learns from
        self._clock, self._told_at = clock, -math.inf
        log.info("inbox: %d samples at the start", len(self.announced))

    @property
    def look_seconds(self) -> float:
        """Return the seconds between two looks into the inbox."""
        return self._settings.inbox_seconds

    @property
    def for_hellos(self) -> Announced:
        """Return the data that the next round learns from, always as they are at the moment of use."""
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
        """Return the training labels, at most as many as the last hello stated.

        So an answer counts no more samples than the hello, even if files have gone since.
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
        """Return the labels of this list, which a hello states and a report counts."""
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
        """Look into the inbox, and remove the stored samples that no list needs any more.

        This runs on the worker's thread.
        """
        found = self._inbox.look()
        needed = {*found, *self.announced, *self.fixed, *self._previous()}
        self._inbox.samples.keep_only({entry.sha256 for entry in needed})
        return found

    def announce(self, listing: Listing) -> None:
        """Make this the announced list; a hello with it follows."""
        new, old = counts_of(listing, self.names), counts_of(self.announced, self.names)
        words = ", ".join(f"{name} {new[name] - old[name]:+d}" for name in new if new[name] != old[name])
        log.info("inbox: %s from the next round on; %d samples in all", words or "other files", len(listing))
        self.announced, self._told_at = listing, self._clock()

    def start(self, plan: Plan) -> Job:
        """Start the job of a run, with the list that the device's state names."""
        saved = self._state.saved.inputs
        self.fixed = as_listing(self._state.store.load(bytes.fromhex(saved))) if saved else self.announced
        self._trainer.learn_from(as_arrays(self.fixed))
        return GrowingJob(self, lambda: self._trainer.start(plan))

    def begin_round(self, number: int) -> bool:
        """Fix the list of a round, and return whether it is another list than that of the round before.

        All phases of one round have the same list.
        """
        if self._state.saved.inputs and self._state.saved.inputs_round == number:
            return False
        before = self.fixed
        # A round that begins just after the hello may have been begun before the hello arrived. Then only the
        # next round uses the new list.
        if self._clock() - self._told_at >= LEAD_SECONDS:
            self.fixed = self.announced
        self._state.fix_inputs(number, as_arrays(self.fixed))
        if self.fixed == before:
            return False
        self._trainer.learn_from(as_arrays(self.fixed))
        return True

    def _previous(self) -> Listing:
        """Return the list of the round before, which may have to be computed again."""
        name = self._state.previous_inputs
        known = name and self._state.store.has(bytes.fromhex(name))
        return as_listing(self._state.store.load(bytes.fromhex(name))) if known else ()


class Announced:
    """The labels of the list that was announced last, as a device's data."""

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
    """A job that is made again from its state, as after a reboot, when the data have grown."""

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
    """Return the growing data of a device; None for a device without an inbox.

    Raise SettingsError if the inbox is no folder, or the names of the classes are unknown.
    """
    if not settings.inbox:
        return None
    folder = Path(settings.inbox).expanduser()
    if not folder.is_dir():
        raise SettingsError(f"data.inbox is {settings.inbox!r}, and there is no such folder; make it")
    if not trainer.data.names:
        raise SettingsError(
            f"data.inbox is {settings.inbox!r}, and nobody knows what the classes of {settings.source} are called; "
            "name them in data.classes"
        )
    samples = samples_of(settings, state.folder, state.disk)
    inbox = Inbox(folder, trainer.data.names, settings.input_shape, samples, trainer.data.kind)
    return GrowingData(trainer, inbox, settings, state)
