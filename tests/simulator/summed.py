"""A run of masked sums: what its devices answer, and the sums that its coordinator computes."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from protofleet.coordinator.secagg import phase
from protofleet.coordinator.secagg.steps import SecureSum
from protofleet.edge_client.agent import Agent
from protofleet.edge_client.secagg.instance import Instance, MaskedAnswer
from protofleet.protocol.secagg.broadcast import ATTEMPT, terms_name
from protofleet.protocol.secagg.field import Words
from protofleet.protocol.secagg.terms import Terms, read_terms
from protofleet.protocol.security.enrolment import KnownRecords
from protofleet.protocol.wire.names import EVALUATE
from tests.simulator.federation import FEDERATION, KEYS, Federation
from tests.simulator.history import Work
from tests.simulator.promises import demand
from tests.simulator.scenario import Scenario, draw
from tests.support.small_enrolment import SmallEnrolment
from tests.support.summed_simulation import books_with_secrets

MOST_OF_ATTEMPT = 12  # Objects of an attempt, and answers to its steps, on the disk of a device.
# The kinds of faults that need another enrolment, take away the memory of a device, or let a party lie.
OTHER_KINDS = frozenset(
    ("clock_jump", "skew", "twin", "new_card", "replaced", "alter", "replay", "forge", "sign_anothers",
     "speak_openly", "miscount")
)  # fmt: skip


def draw_summed(seed: int) -> Scenario:
    """Draw a scenario with masked sums. It has dice of its own, so the other seeds keep their scenarios."""
    dice = random.Random(f"{seed}/summed")
    base = draw(dice.randrange(1 << 30))
    while base.method != "tally" or base.policy.buffered or len(base.devices) < 3:
        base = draw(dice.randrange(1 << 30))
    policy = replace(base.policy, quorum=3, cohort=0, spares=0, attempts=0, rounds=min(3, base.policy.rounds))
    return replace(
        base, seed=seed, policy=policy, hyper=base.hyper | {"phases": 1}, kinds=base.kinds - OTHER_KINDS,
        sealed=True, deltas=False, uplink="", summed=True,
    )  # fmt: skip


class SummedFederation(Federation):
    def __post_init__(self) -> None:
        super().__post_init__()
        self._enrolment = SmallEnrolment(self.folder / "records", FEDERATION, KEYS)
        self._words: dict[tuple[bytes, str], Words] = {}  # Hash of the terms and device -> encoded update.

    def keyring_of(self, name: str) -> KnownRecords:
        return self._enrolment.keyring_of(name)

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Note for a while what the devices mask, and check each sum."""
        masked, conduct = Instance.masked, phase.conduct

        def noted(instance: Instance, first: bytes, sealed: bytes, words: Words) -> MaskedAnswer:
            self._words[instance.book.terms.hash, instance.name] = words.copy()
            return masked(instance, first, sealed, words)

        def conducted(terms: Terms, *given: Any) -> Generator[Any, Any, SecureSum]:
            found = yield from conduct(terms, *given)
            self._check_sum(terms, found)
            return found

        with mock.patch.object(Instance, "masked", noted), mock.patch.object(phase, "conduct", conducted):
            yield

    def _check_sum(self, terms: Terms, found: SecureSum) -> None:
        each = [self._words[terms.hash, device].astype(np.int64) for device in found.survivors]
        plain = (np.sum(each, axis=0) & ((1 << terms.field.bits) - 1)).astype(np.uint32)
        words = f"I1: the sum of round {terms.round} is not the sum of the updates of {found.survivors}"
        demand(np.array_equal(found.words, plain), words)

    def check_sums(self) -> None:
        """Check the answers that became durable, and that devices which know the end have no secret."""
        survivors: dict[bytes, set[bytes]] = defaultdict(set)
        for folder, works in self.history.works.items():
            steps = self._steps(folder.name, works)
            for attempt in {attempt for attempt, step in steps if step == "train.unmask"}:
                agreed = steps[attempt, "train.agree"].payload["control.values.survivors"]
                survivors[attempt].add(agreed.tobytes())
        for sets in survivors.values():
            demand(len(sets) == 1, "I1: devices have given shares for two sums of an attempt")
        for name in self.scenario.devices:
            agent = self.processes[name].party
            if isinstance(agent, Agent) and agent.run.over:
                demand(not [*books_with_secrets(agent.state.store)], f"I1: {name} has kept secrets")

    def _steps(self, device: str, works: list[Work]) -> dict[tuple[bytes, str], Work]:
        """Return the answer of a device to each step of each attempt."""
        steps: dict[tuple[bytes, str], Work] = {}
        for work in works:
            step = work.answer.phase
            if step != EVALUATE:
                attempt = attempt_of(work)
                words = f"I1: {device} has answered two questions of {step} in one attempt"
                demand((attempt, step) not in steps, words)
                steps[attempt, step] = work
        return steps


def attempt_of(work: Work) -> bytes:
    """Return the nonce of the attempt to which an answer belongs."""
    if ATTEMPT in work.payload:
        return work.payload[ATTEMPT].tobytes()
    return read_terms(work.payload[terms_name("values")].tobytes()).attempt
