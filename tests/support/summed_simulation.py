"""A simulated federation of enrolled devices, in which the coordinator learns only the sum of the updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from protofleet.coordinator.secagg import phase
from protofleet.edge_client.masked_sums import OWN
from protofleet.edge_client.secagg.book import read_book
from protofleet.edge_client.secagg.instance import Instance
from protofleet.lab.simulation.federation import Simulation
from protofleet.lab.simulation.network import NetworkConditions
from protofleet.protocol.secagg.faults import SecaggError
from protofleet.protocol.secagg.field import Words
from protofleet.protocol.secagg.terms import Terms
from protofleet.protocol.settings.secagg import SecaggSettings
from protofleet.protocol.storage.store import ObjectStore
from tests.support.few_methods import FEW_STEPS
from tests.support.run_policy import RunPolicy
from tests.support.small_enrolment import SmallEnrolment
from tests.support.small_federation import CLASSES, plan, shard

STEPS = ("train", "train.shares", "train.masked", "train.agree", "train.unmask")
PRESENCE_STEPS = tuple(f"train.presence.{step}" for step in ("masked", "agree", "unmask"))
STEPS_OF_ROWS = (*STEPS[:2], *PRESENCE_STEPS, *STEPS[2:])
SETTINGS = SecaggSettings(bits=32, limit=64.0, metrics="each")
POLICY = RunPolicy(
    rounds=2, quorum=3, gather=4, patience_seconds=60.0, settle_seconds=0.5, straggler_factor=0.0
)


class SummedSimulation(Simulation):
    """A simulation whose parties have records of one root."""

    def enrol(self) -> None:
        self.enrolment = SmallEnrolment(self.folder / "records", self.topics.federation, self.keys)

    def keyring_of(self, name: str):
        return self.enrolment.keyring_of(name)


def summed(
    folder,
    method="fedavg",
    devices=4,
    policy=POLICY,
    settings=SETTINGS,
    hyper=None,
    held=None,
    dp=None,
    **more,
):
    """Return a simulation of a small run with masked sums; `held` has the classes of each device."""
    held = held or [range(CLASSES)] * devices
    shards = {f"device-{i}": shard(i, classes=classes) for i, classes in enumerate(held)}
    hyper = FEW_STEPS if hyper is None else hyper
    made = replace(plan(method, policy.rounds, **hyper), secagg=settings, dp=dp)
    return SummedSimulation(made, shards, policy, folder, more.pop("conditions", NetworkConditions()), **more)


def books_with_secrets(store: ObjectStore) -> Iterator[str]:
    """Yield the objects of a device's store that have secrets of an attempt."""
    for path in sorted(store.folder.glob("*.body")):
        arrays = store.load(bytes.fromhex(path.stem))
        if OWN in arrays:
            try:
                book = read_book(arrays[OWN].tobytes())
            except SecaggError:  # It is a vector.
                continue
            if book.secrets is not None:
                yield path.stem


@dataclass(frozen=True)
class RecordedSum:
    """A sum that the coordinator has computed."""

    terms: Terms
    survivors: tuple[str, ...]
    words: Words


class SumRecorder:
    """The words that each device has masked, and the sums that the coordinator has computed."""

    def __init__(self, monkeypatch) -> None:
        self.words: dict[bytes, dict[str, Words]] = {}  # Hash of the terms -> device -> words.
        self.sums: list[RecordedSum] = []
        masked, conduct = Instance.masked, phase.conduct

        def noted(instance, first, sealed, words):
            self.words.setdefault(instance.book.terms.hash, {})[instance.name] = words.copy()
            return masked(instance, first, sealed, words)

        def conducted(terms, *given):
            found = yield from conduct(terms, *given)
            self.sums.append(RecordedSum(terms, found.survivors, found.words))
            return found

        monkeypatch.setattr(Instance, "masked", noted)
        monkeypatch.setattr(phase, "conduct", conducted)

    def check(self) -> None:
        """Check that each sum has the bits of the plain sum of the words of its devices."""
        assert self.sums
        for one in self.sums:
            each, bits = self.words[one.terms.hash], one.terms.field.bits
            plain = np.sum([each[name].astype(np.int64) for name in one.survivors], axis=0)
            assert np.array_equal(one.words, (plain & ((1 << bits) - 1)).astype(np.uint32))
