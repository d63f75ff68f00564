"""The device's part of the summed phases of a run: it sends keys and a masked vector instead of its update.

The update of the method stays in the device's own store, under a name that the device never offers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.edge_client.secagg.book import read_book
from protofleet.edge_client.secagg.instance import Instance
from protofleet.edge_client.secagg.past_attempts import PastAttempts
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.masked import MaskedState
from protofleet.edge_client.trainer.job import Job
from protofleet.edge_client.work_queue import Question
from protofleet.methods.contract.contribution import arrays_of_payload, layout_of
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.secagg.broadcast import (
    CONTROL,
    base_of,
    hash_of,
    is_of_attempt,
    method_arrays,
    read_announced,
    read_most,
    vector_name,
)
from protofleet.protocol.secagg.control_arrays import (
    ByteArrays,
    Part,
    SumStep,
    array_name,
    as_array,
    bytes_in,
)
from protofleet.protocol.secagg.directory import admitted, unpack_records
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import Field, Words
from protofleet.protocol.secagg.terms import Stage, Terms
from protofleet.protocol.security.trust import Trust
from protofleet.protocol.wire.messages import Array, Arrays

VALUES: Final[Stage] = "values"
# Metrics that say nothing about the samples of a device.
HARMLESS: Final = ("seconds", "joules", "celsius")
OWN: Final = "own"  # name of the array of bytes in an object of the device's own store


@dataclass(frozen=True)
class SummedAnswer:
    """The answer to a task of a summed phase, and what the device must store with it."""

    arrays: Mapping[str, Array]
    metrics: dict[str, float]
    masked: MaskedState


class MaskedSums:
    """The attempts of a device to add its update to a sum."""

    def __init__(
        self, name: str, identity: Ed25519PrivateKey, federation: str, trust: Callable[[], Trust],
        time: Callable[[], float],
    ) -> None:  # fmt: skip
        self._name, self._identity, self._federation = name, identity, federation
        self._trust, self._time = trust, time

    def answer(
        self,
        job: Job,
        question: Question,
        plan: Plan,
        state: DeviceState,
        run: str,
        examples: int,
        arrays: Arrays,
    ) -> SummedAnswer:
        """Answer a task of a summed phase; raise SecaggError if the device must not go on."""
        phase, _, step = question.phase.partition(".")
        if not step:
            return self._begin(job, question, plan, state, run, examples, arrays)
        saved = state.saved.masked
        if saved is None or not saved.book or saved.phase != phase:
            raise SecaggError(SecaggFault.OVER, "this device has begun no attempt of this phase")
        instance = Instance(self._name, self._identity, read_book(own_bytes(state, saved.book)))
        if not is_of_attempt(bodies(arrays), instance.book.terms):
            raise SecaggError(
                SecaggFault.OVER, "the task is of another attempt than the newest of this device"
            )
        try:
            found = self._step(instance, step, question, plan, state, saved, arrays)
        except SecaggError:
            instance.end()
            state.save_masked(saved.with_book(put_bytes(state, instance.book.encode())))
            raise
        book = put_bytes(state, instance.book.encode())
        over = step == SumStep.UNMASK
        return SummedAnswer(found, {}, saved.ended(book) if over else saved.with_book(book))

    def _begin(
        self,
        job: Job,
        question: Question,
        plan: Plan,
        state: DeviceState,
        run: str,
        examples: int,
        arrays: Arrays,
    ) -> SummedAnswer:
        """Train, encode the update, and make the keys of an attempt. If the update is known, use it again."""
        phase, saved = question.phase, state.saved.masked
        terms, most = read_announced(bodies(arrays), VALUES), read_most(arrays)
        self._check(terms, most, question, plan, run, arrays)
        received, model = method_arrays(arrays), hash_of(arrays).hex()
        known = saved is not None and (saved.phase, saved.round, saved.model) == (
            phase,
            question.round,
            model,
        )
        if saved is not None and known and saved.payload:
            payload: Arrays = state.store.load(bytes.fromhex(saved.payload))
            metrics = state.metrics_of(phase)
        else:
            payload, metrics = job.run(phase, question.round, received)
        past = read_book(own_bytes(state, saved.book)).past if saved and saved.book else PastAttempts()
        instance = Instance.begin(self._name, self._identity, terms, past)
        words = encoded(plan, phase, terms, payload, received, examples, most)
        masked = MaskedState(
            phase,
            question.round,
            model,
            put_bytes(state, instance.book.encode()),
            state.store.put(payload).object.hex(),
            put_bytes(state, words.astype("<u4").tobytes()),
        )
        return SummedAnswer(_parts(keys=instance.keys()), dict(metrics), masked)

    def _check(
        self, terms: Terms, most: int, question: Question, plan: Plan, run: str, arrays: Arrays
    ) -> None:
        """Raise SecaggError if the terms are not those of the signed plan and of this task."""
        settings = plan.secagg
        assert settings is not None, "only a run with [secagg] has summed phases"
        try:
            devices = terms.field.devices
            field = Field(devices, settings.limit, settings.fraction(devices), settings.bits)
        except ValueError as error:
            raise SecaggError(SecaggFault.OTHER_TERMS, str(error)) from None
        place = (self._federation, run, question.round, VALUES, base_of(arrays, most), settings.least)
        told = (terms.federation, terms.run, terms.round, terms.stage, terms.base, terms.least)
        if terms.field != field or told != place:
            raise SecaggError(
                SecaggFault.OTHER_TERMS, "the terms of the attempt are not those of the plan and of the task"
            )

    def _step(
        self, instance: Instance, step: str, question: Question, plan: Plan, state: DeviceState,
        saved: MaskedState, arrays: Arrays,
    ) -> Mapping[str, Array]:  # fmt: skip
        def sent(part: Part) -> bytes:
            return bytes_in(bodies(arrays), array_name(VALUES, part))

        match step:
            case SumStep.SHARES:
                directory = admitted(unpack_records(sent("records")), self._trust(), self._time())
                return _parts(shares=instance.shares(sent("roster"), directory))
            case SumStep.MASKED:
                words = np.frombuffer(own_bytes(state, saved.words), "<u4").astype(np.uint32)
                found = instance.masked(sent("first"), question.personal, words)
                vector = vector_name(plan.summed_phases[saved.phase].kinds)
                signed = _parts(signature=found.signature, opened=found.opened)
                return {vector: as_array(found.vector), **signed}
            case SumStep.AGREE:
                return _parts(signature=instance.agree(sent("survivors")))
            case SumStep.UNMASK:
                return _parts(released=instance.unmask(sent("signatures")))
        raise SecaggError(SecaggFault.MALFORMED, f"there is no step {step[:32]!r}")


def encoded(
    plan: Plan, phase: str, terms: Terms, payload: Arrays, received: Arrays, examples: int, most: int
) -> Words:
    """Return the contribution of an update as words of the field, or raise SecaggError."""
    try:
        layout = layout_of(plan.summed_phases[phase], arrays_of_payload(payload), plan.classes)
        vector = layout.vector(payload, received, examples, most)
    except ValueError as error:
        raise SecaggError(SecaggFault.OTHER_TERMS, str(error)) from None
    if len(vector) != terms.length:
        raise SecaggError(
            SecaggFault.OTHER_TERMS, f"the update has {len(vector)} numbers, the attempt {terms.length}"
        )
    return terms.field.encode(vector)


def harmless(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that say nothing about the samples of a device."""
    return {name: value for name, value in metrics.items() if name.partition(".")[0] in HARMLESS}


def bodies(arrays: Arrays) -> ByteArrays:
    """Return the arrays of bytes that belong to an attempt."""
    own = [name for name in arrays if name.startswith(CONTROL)]
    return {name: found for name in own if (found := arrays[name]).dtype == np.uint8}  # type: ignore[misc]


def _parts(**parts: bytes) -> dict[str, Array]:
    return {f"control.{VALUES}.{name}": as_array(data) for name, data in parts.items()}


def put_bytes(state: DeviceState, data: bytes) -> str:
    """Store bytes in the device's own store, and return the name of their object."""
    return state.store.put({OWN: as_array(data)}).object.hex()


def own_bytes(state: DeviceState, name: str) -> bytes:
    return np.asarray(state.store.load(bytes.fromhex(name))[OWN]).tobytes()
