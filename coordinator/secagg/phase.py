"""Replace the updates of an averaged phase by one reply, which is made from the sum of masked vectors.

Each step of an attempt is a task of its own. The first step is the method's own task, whose updates are keys instead
of arrays. The generator draws nothing, so a coordinator that restarts repeats it from the stored updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from protofleet.coordinator.round.past_sums import PastSum, PastSums
from protofleet.coordinator.round.weights import weight_cap
from protofleet.coordinator.secagg.question import SumAsk
from protofleet.coordinator.secagg.steps import AttemptEndedError, SecureSum, SumConduct, SumQuestion, conduct
from protofleet.methods.contract.base import Ask, Member, Payload, Reply
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.methods.contract.contribution import Vector, VectorLayout, apart_of, arrays_of_wants
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.private_rows import COUNTS, LABELS, ROWS, rows_with_noise, table_of_broadcast
from protofleet.methods.contract.summed import noise_of_sum, summed_field, summed_layout
from protofleet.methods.contract.wants import TensorSpec
from protofleet.protocol.privacy.accountant import Noise
from protofleet.protocol.secagg.broadcast import (
    PRESENCE_VECTOR,
    announced,
    base_of,
    of_attempt,
    step_name,
    vector_name,
)
from protofleet.protocol.secagg.cohorts import may_follow
from protofleet.protocol.secagg.control_arrays import ByteArrays, Part, SumStep, array_name
from protofleet.protocol.secagg.directory import Directory, pack_records
from protofleet.protocol.secagg.evidence import evidence_arrays
from protofleet.protocol.secagg.faults import SecaggFault
from protofleet.protocol.secagg.masks import digest
from protofleet.protocol.secagg.packing import packed_bytes
from protofleet.protocol.secagg.presence import presence_field
from protofleet.protocol.secagg.roster import KEYS
from protofleet.protocol.secagg.sealing import SEALED_PAIR
from protofleet.protocol.secagg.shares import SHARE
from protofleet.protocol.secagg.signing import SIGNATURE
from protofleet.protocol.secagg.terms import NONCE, Terms
from protofleet.protocol.settings.secagg import SecaggSettings
from protofleet.protocol.wire.messages import Array
from protofleet.protocol.wire.reasons import Problem, Reason

SUM: Final = "sum"  # the device of the one reply
# Attempts after which a round ends without a sum, if a device of the last sum has dropped out of each of them.
MOST_CLOSE_ATTEMPTS: Final = 3
SumPhase: TypeAlias = Generator[Ask, Sequence[Reply], Reply]


@dataclass
class SumStage:
    """One of the sums of a phase: first the holders of each class, if there are classes, and then the values."""

    terms: Terms
    attempt: SumConduct
    vector: str  # name of the array with the masked vector
    follows: bool = False  # True if another stage was before it
    # True if the round ends without a sum in case the devices differ too little from those of the last sum.
    is_last_try: bool = False
    found: SecureSum | None = None
    noise: Noise | None = None  # the noise that the devices share in the sum, if they add any

    def __post_init__(self) -> None:
        self.question = next(self.attempt)

    def send(self, answers: Mapping[str, ByteArrays]) -> None:
        """Pass the answers of a step on, up to the next question or the sum."""
        try:
            self.question = self.attempt.send(answers)
        except StopIteration as end:
            self.found = end.value
        except AttemptEndedError as end:
            end.spent = self._is_spent(end.why)
            raise

    def ended(self, why: SecaggFault, detail: str) -> AttemptEndedError:
        """Return the error that ends the attempt in its present step."""
        error = AttemptEndedError(self.question.step, why, detail)
        error.spent = self._is_spent(why)
        return error

    def _is_spent(self, why: SecaggFault) -> bool:
        """Return whether only a later round can have a sum, after the attempt has ended for this reason."""
        return self.is_final or (why is SecaggFault.CLOSE_COHORT and self.is_last_try)

    @property
    def is_final(self) -> bool:
        """Return whether devices that answer the present step take part in no other attempt of the round.

        A device counts the holders of classes again only if `apart` limits how the cohort may differ.
        """
        step, ends = self.question.step, self.question.step is SumStep.UNMASK
        if self.terms.apart:
            return ends and self.terms.stage == "values"
        return ends or (self.follows and step not in (SumStep.KEYS, SumStep.SHARES))


@dataclass(frozen=True)
class EnrolledDevice:
    """The key with which a device signs, and the record in which the root states this key."""

    sign: bytes
    record: bytes


# Function that returns the present records of devices.
Records: TypeAlias = Callable[[Sequence[str]], Mapping[str, EnrolledDevice]]


class SummedPhases:
    """The phases of a run whose updates the coordinator learns only as a sum."""

    def __init__(
        self,
        plan: Plan,
        settings: SecaggSettings,
        federation: str,
        run: str,
        records: Records,
        weight_cap: float,
        past: PastSums | None = None,
    ) -> None:
        self._plan, self._settings = plan, settings
        self._federation, self._run, self._records = federation, run, records
        self._weight_cap = weight_cap
        self._past = past or PastSums()

    @property
    def apart(self) -> int:
        """Return by how many devices the cohorts of two sums must differ, if they are not equal; 0 means no limit."""
        strict, holders = self._settings.strict_cohort, self._settings.holders
        return max(apart_of(one, strict, holders) for one in self._plan.summed_phases.values())

    @property
    def last_sums(self) -> tuple[PastSum, ...]:
        """Return the last sum of each stage, if the cohort of a later sum depends on them; otherwise ()."""
        return self._past.newest() if self.apart else ()

    def conducted(self, ask: Ask, number: int, attempt: int, members: Sequence[Member]) -> SumPhase:
        """Conduct the phase of this task; the generator returns the one reply of the phase."""
        averaged, broadcast = self._plan.summed_phases[ask.phase], to_numpy(ask.payload)
        layout = summed_layout(self._plan, ask.phase, arrays_of_wants(ask.wants))
        most = self._most(members)
        base = base_of(broadcast, most)
        values = self._terms(ask, number, attempt, len(members), base, layout.length)
        terms = [self._presence(values, layout.classes), values] if layout.classes else [values]
        devices = [member.device for member in members]
        known = self._records(devices)
        directory = Directory({device: one.sign for device, one in known.items()})
        records = pack_records([known[device].record for device in directory.names])
        # The run has waited for missing devices before it began with a cohort that can have no sum.
        previous = [self._previous_of(one, attempt) for one in terms]
        can_have_sum = all(may_follow(one, devices, values.apart) for one in previous)
        is_last_try = attempt + 1 >= MOST_CLOSE_ATTEMPTS or not can_have_sum
        noise = noise_of_sum(self._plan, layout.length, len(members))
        vectors = [PRESENCE_VECTOR, vector_name(averaged.kinds)][-len(terms) :]
        opening = {**ask.payload, **to_torch(announced(*terms, most=most))}
        stages = [
            SumStage(
                one,
                conduct(one, directory, directory.names, vector, records, before),
                vector,
                follows=one is not terms[0],
                is_last_try=is_last_try,
                noise=noise.mechanism.noise if noise and one is values else None,
            )
            for one, vector, before in zip(terms, vectors, previous, strict=True)
        ]
        replies = yield self._together(ask.phase, stages, opening)
        examples = {reply.device: min(reply.examples, most) for reply in replies}
        self._advance(stages, replies)
        self._advance(stages, (yield self._together(ask.phase, stages)))
        evidence: Mapping[str, Array] = {}
        for stage in stages:
            while stage.found is None:
                extra = evidence if stage.question.step is SumStep.MASKED else {}
                self._advance([stage], (yield self._task(ask.phase, stage, extra)))
                _demand_counted(stages, stage)
            self._past.note(PastSum(number, attempt, stage.terms.stage, stage.found.survivors))
            evidence = (
                evidence_arrays(stage.found.roster, stage.found.evidence) if stage is not stages[-1] else {}
            )
        found = stages[-1].found
        assert found is not None, "the last stage has ended"
        counted = [examples[device] for device in found.survivors]
        total = values.field.decode(found.words)
        if noise is not None:
            return self._reply_with_noise(ask, layout, noise.mechanism.values(total), counted)
        mean = layout.mean(total, broadcast, counted, most, ask.wants)
        holders = self._holders(stages[0]) if stages[0] is not stages[-1] else None
        return Reply(SUM, sum(counted), to_torch(mean), devices_of_class=holders)

    def _reply_with_noise(
        self, ask: Ask, layout: VectorLayout, total: Vector, counted: Sequence[int]
    ) -> Reply:
        """Return the reply with the mean of a sum to which devices have added noise; each device counts once."""
        broadcast, classes, devices = to_numpy(ask.payload), self._plan.classes, len(counted)
        if (sums := self._plan.sums) is not None:
            vector = torch.from_numpy(total)
            # The devices' statements are not used, because a wrong one would scale the sums of all devices.
            samples = sums.samples(vector)
            return Reply(SUM, samples, sums.payload(vector, samples))
        if (rows := rows_with_noise(self._plan)) is None:
            whole = {name: broadcast[name] for name, spec in ask.wants.items() if not spec.is_float}
            mean = layout.mean(total, broadcast, counted, 1, ask.wants)
            return Reply(SUM, sum(counted), to_torch({**mean, **whole}))
        (place,) = layout.places
        base = {ROWS: table_of_broadcast(rows, place.shape, broadcast)}
        mean = layout.mean(total, base, counted, 1, ask.wants)
        once = {LABELS: np.arange(classes), COUNTS: np.full(classes, devices)}
        holders = dict.fromkeys(range(classes), devices)
        return Reply(SUM, sum(counted), to_torch({**mean, **once}), devices_of_class=holders)

    @staticmethod
    def _holders(stage: SumStage) -> dict[int, int]:
        """Return the number of devices that hold each class, from the sum of the stage that counts them."""
        assert stage.found is not None, "the stage has ended"
        total = stage.terms.field.decode(stage.found.words)
        return {label: round(number) for label, number in enumerate(total.tolist()) if round(number)}

    @staticmethod
    def _advance(stages: Sequence[SumStage], replies: Sequence[Reply]) -> None:
        answers = {reply.device: BytesOnDemand(reply.payload) for reply in replies}
        for stage in stages:
            stage.send(answers)

    def _previous_of(self, terms: Terms, attempt: int) -> tuple[str, ...]:
        """Return the devices of the last sum of this stage, if the cohort of the sum depends on it."""
        return self._past.before(terms.stage, terms.round, attempt) if terms.apart else ()

    def _most(self, members: Sequence[Member]) -> int:
        """Return the largest number of examples with which a device of the cohort counts."""
        claimed = [member.examples for member in members]
        cap = weight_cap(claimed, self._weight_cap)
        return max(1, max(claimed) if math.isinf(cap) else min(max(claimed), int(cap)))

    def _terms(self, ask: Ask, number: int, attempt: int, devices: int, base: bytes, length: int) -> Terms:
        settings = self._settings
        field = summed_field(self._plan, devices)
        place = (self._federation, self._run, str(number), str(attempt), ask.phase)
        nonce = digest("attempt", *place)[:NONCE]
        averaged = self._plan.summed_phases[ask.phase]
        apart = apart_of(averaged, settings.strict_cohort, settings.holders)
        return Terms(
            self._federation, self._run, number, nonce, "values", base, length, field, settings.least, apart
        )

    @staticmethod
    def _presence(values: Terms, classes: int) -> Terms:
        """Return the terms of the stage that counts the devices which hold each class."""
        return replace(values, stage="presence", length=classes, field=presence_field(values.field.devices))

    def _together(self, phase: str, stages: Sequence[SumStage], opening: Payload | None = None) -> SumAsk:
        """Return one task for the keys, or for the shares of keys, of all stages."""
        asks = [self._task(phase, stage, {}, opening) for stage in stages]
        last = asks[-1]
        return replace(
            last,
            payload={name: value for ask in asks for name, value in ask.payload.items()},
            wants={name: spec for ask in asks for name, spec in ask.wants.items()},
            least=max(ask.least for ask in asks),
            verify=lambda device, payload: next(
                (problem for ask in asks if (problem := ask.verify(device, payload))), None
            ),
        )

    def _task(
        self, phase: str, stage: SumStage, extra: Mapping[str, Array], opening: Payload | None = None
    ) -> SumAsk:
        question, terms = stage.question, stage.terms
        shared = to_torch({**question.shared, **of_attempt(terms), **extra})
        return SumAsk(
            phase if opening is not None else f"{phase}.{step_name(question.step, terms.stage)}",
            shared if opening is None else opening,
            _wants(question.step, terms, stage.vector),
            {
                device: b"".join(arrays[name].tobytes() for name in sorted(arrays))
                for device, arrays in question.personal.items()
            },
            SEALED_PAIR * (terms.field.devices - 1),
            question.enough,
            0.0 if opening is not None else self._settings.patience_seconds,
            stage.is_final,
            lambda device, payload: _problem(question, device, payload),
            stage.noise if question.step is SumStep.MASKED else None,
        )


class BytesOnDemand(ByteArrays):
    """The arrays of an update, each read when it is used."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload

    def __getitem__(self, name: str) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = self._payload[name].numpy()
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._payload)

    def __len__(self) -> int:
        return len(self._payload)


def _demand_counted(stages: Sequence[SumStage], stage: SumStage) -> None:
    """End the attempt if its values are not of the devices whose classes were counted, and the cohorts are limited.

    Otherwise the last sums of the two stages could be of different devices, so that no later cohort may follow both.
    """
    counted, question = stages[0].found, stage.question
    if stage is stages[0] or counted is None or not stage.terms.apart or question.step is not SumStep.AGREE:
        return
    if different := set(counted.survivors) ^ set(question.devices):
        raise stage.ended(
            SecaggFault.CLOSE_COHORT,
            f"{', '.join(sorted(different))} dropped out after the holders of each class were counted",
        )


def _problem(question: SumQuestion, device: str, payload: Payload) -> Problem | None:
    error = question.check(device, BytesOnDemand(payload))
    return Problem(Reason.WRONG_ARRAYS, f"secagg {error.why.value}: {error.detail}") if error else None


def _wants(step: SumStep, terms: Terms, vector: str) -> dict[str, TensorSpec]:
    """Return the arrays of a step with the most bytes that each may have; `verify` checks their exact lengths."""
    devices = terms.field.devices

    def part(name: Part, most: int) -> dict[str, TensorSpec]:
        return {array_name(terms.stage, name): TensorSpec((name,), "uint8", most=most)}

    match step:
        case SumStep.KEYS:
            return part("keys", KEYS)
        case SumStep.SHARES:
            return part("shares", SEALED_PAIR * devices)
        case SumStep.MASKED:
            masked = TensorSpec((packed_bytes(terms.length, terms.field.bits),), "uint8")
            return {
                vector: masked,
                **part("signature", SIGNATURE),
                **part("opened", -(-devices // 8)),
            }
        case SumStep.AGREE:
            return part("signature", SIGNATURE)
        case SumStep.UNMASK:
            return part("released", SHARE * devices)
