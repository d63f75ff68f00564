"""Replace the updates of an averaged phase by one reply, which is made from the sum of masked vectors.

Each step of an attempt is a task of its own. The first step is the method's own task, whose updates are keys instead
of arrays. The generator draws nothing, so a coordinator that restarts repeats it from the stored updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from protofleet.coordinator.round.weights import weight_cap
from protofleet.coordinator.secagg.question import SumAsk
from protofleet.coordinator.secagg.steps import SumQuestion, conduct
from protofleet.methods.contract.base import Ask, Member, Payload, Reply
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.methods.contract.contribution import arrays_of_wants, layout_of
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.wants import TensorSpec
from protofleet.protocol.secagg.broadcast import announced, base_of, of_attempt, vector_name
from protofleet.protocol.secagg.control_arrays import ByteArrays, Part, SumStep, array_name
from protofleet.protocol.secagg.directory import Directory, pack_records
from protofleet.protocol.secagg.field import Field
from protofleet.protocol.secagg.masks import digest
from protofleet.protocol.secagg.packing import packed_bytes
from protofleet.protocol.secagg.roster import KEYS
from protofleet.protocol.secagg.sealing import SEALED_PAIR
from protofleet.protocol.secagg.shares import SHARE
from protofleet.protocol.secagg.signing import SIGNATURE
from protofleet.protocol.secagg.terms import NONCE, Terms
from protofleet.protocol.settings.secagg import SecaggSettings
from protofleet.protocol.wire.reasons import Problem, Reason

SUM: Final = "sum"  # the device of the one reply
SumPhase: TypeAlias = Generator[Ask, Sequence[Reply], Reply]


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
    ) -> None:
        self._plan, self._settings = plan, settings
        self._federation, self._run, self._records = federation, run, records
        self._weight_cap = weight_cap

    def sums(self, ask: Ask) -> bool:
        return ask.phase in self._plan.summed_phases

    def conducted(self, ask: Ask, number: int, attempt: int, members: Sequence[Member]) -> SumPhase:
        """Conduct the phase of this task; the generator returns the one reply of the phase."""
        averaged, broadcast = self._plan.summed_phases[ask.phase], to_numpy(ask.payload)
        layout = layout_of(averaged, arrays_of_wants(ask.wants), self._plan.classes)
        most = self._most(members)
        terms = self._terms(ask, number, attempt, len(members), base_of(broadcast, most), layout.length)
        known = self._records([member.device for member in members])
        directory = Directory({device: one.sign for device, one in known.items()})
        records = pack_records([known[device].record for device in directory.names])
        vector = vector_name(averaged.kinds)
        attempted = conduct(terms, directory, directory.names, vector, records)
        opening = {**ask.payload, **to_torch(announced(terms, most=most))}
        examples: dict[str, int] = {}
        question = next(attempted)
        while True:
            replies = yield self._task(ask.phase, question, terms, vector, opening)
            if question.step is SumStep.KEYS:
                examples = {reply.device: min(reply.examples, most) for reply in replies}
            try:
                question = attempted.send({reply.device: byte_arrays(reply.payload) for reply in replies})
            except StopIteration as end:
                found = end.value
                break
        counted = [examples[device] for device in found.survivors]
        mean = layout.mean(terms.field.decode(found.words), broadcast, counted, most, ask.wants)
        return Reply(SUM, sum(counted), to_torch(mean))

    def _most(self, members: Sequence[Member]) -> int:
        """Return the largest number of examples with which a device of the cohort counts."""
        claimed = [member.examples for member in members]
        cap = weight_cap(claimed, self._weight_cap)
        return max(1, max(claimed) if math.isinf(cap) else min(max(claimed), int(cap)))

    def _terms(self, ask: Ask, number: int, attempt: int, devices: int, base: bytes, length: int) -> Terms:
        settings = self._settings
        field = Field(devices, settings.limit, settings.fraction(devices), settings.bits)
        place = (self._federation, self._run, str(number), str(attempt), ask.phase)
        nonce = digest("attempt", *place)[:NONCE]
        return Terms(
            self._federation, self._run, number, nonce, "values", base, length, field, settings.least
        )

    def _task(self, phase: str, question: SumQuestion, terms: Terms, vector: str, opening: Payload) -> SumAsk:
        is_first = question.step is SumStep.KEYS
        shared = to_torch({**question.shared, **of_attempt(terms)})
        return SumAsk(
            phase if is_first else f"{phase}.{question.step.value}",
            opening if is_first else shared,
            _wants(question.step, terms, vector),
            {
                device: b"".join(arrays[name].tobytes() for name in sorted(arrays))
                for device, arrays in question.personal.items()
            },
            question.enough,
            0.0 if is_first else self._settings.patience_seconds,
            lambda device, payload: _problem(question, device, payload),
        )


def byte_arrays(payload: Payload) -> ByteArrays:
    return {name: payload[name].numpy() for name in payload}


def _problem(question: SumQuestion, device: str, payload: Payload) -> Problem | None:
    error = question.check(device, byte_arrays(payload))
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
