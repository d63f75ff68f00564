"""The device's part of the summed phases of a run: it sends keys and a masked vector instead of its update.

The update of the method stays in the device's own store, under a name that the device never offers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protofleet.edge_client.private_updates import whole_numbers
from protofleet.edge_client.secagg.book import read_book
from protofleet.edge_client.secagg.instance import Instance
from protofleet.edge_client.secagg.past_attempts import PastAttempts
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.masked import MaskedState
from protofleet.edge_client.trainer.job import Job
from protofleet.edge_client.work_queue import Question
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.contribution import VectorLayout, apart_of, arrays_of_payload
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.private_rows import PrivateRows, rows_with_noise
from protofleet.methods.contract.shared_noise import SharedNoise, demand_room
from protofleet.methods.contract.summed import noise_of_sum, summed_field, summed_layout
from protofleet.protocol.privacy.accountant import Noise
from protofleet.protocol.privacy.noise import noise_key
from protofleet.protocol.secagg.broadcast import (
    CONTROL,
    PRESENCE_VECTOR,
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
    unpack_names,
)
from protofleet.protocol.secagg.directory import admitted, unpack_records
from protofleet.protocol.secagg.evidence import read_evidence
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import Words
from protofleet.protocol.secagg.presence import presence_field, presence_words
from protofleet.protocol.secagg.terms import STAGES, Stage, Terms
from protofleet.protocol.security.trust import Trust
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.secagg import SecaggSettings
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.messages import Array, Arrays

VALUES: Final[Stage] = "values"
PRESENCE: Final[Stage] = "presence"
NO_ENROLMENT: Final = (
    "the run sums masked updates ([secagg]), but this device has only key files, so it cannot check the keys of "
    "other devices; enrol the device"
)
# Metrics that say nothing about the samples of a device.
HARMLESS: Final = ("seconds", "joules", "celsius")
OWN: Final = "own"  # name of the array of bytes in an object of the device's own store


@dataclass(frozen=True)
class SummedAnswer:
    """The answer to a task of a summed phase, and what the device must store with it."""

    arrays: Mapping[str, Array]
    metrics: dict[str, float]
    masked: MaskedState
    # The noise of the numbers that this answer releases, if no earlier answer has released them.
    noise: Noise | None = None


@dataclass(frozen=True)
class SummedTask:
    """A task of a summed phase, with what the device knows about its run."""

    question: Question
    plan: Plan
    state: DeviceState
    run: str
    counts: NDArray[np.int64]  # number of samples of each class on the device
    arrays: Arrays

    @property
    def examples(self) -> int:
        return int(self.counts.sum())

    @property
    def phase(self) -> str:
        return self.question.phase.partition(".")[0]

    @property
    def step(self) -> str:
        return self.question.phase.partition(".")[2]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of the phase: the holders of each class first, if the phase has rows of classes."""
        return STAGES if self.averaged.rows else (VALUES,)

    @property
    def averaged(self) -> Averaged:
        return self.plan.summed_phases[self.phase]

    @property
    def settings(self) -> SecaggSettings:
        assert self.plan.secagg is not None, "only a run with [secagg] has summed phases"
        return self.plan.secagg

    def sent(self, stage: Stage, part: Part) -> bytes:
        """Return an array of bytes of the broadcast, or raise SecaggError."""
        return bytes_in(bodies(self.arrays), array_name(stage, part))


class MaskedSums:
    """The attempts of a device to add its update to a sum."""

    def __init__(
        self, name: str, identity: Ed25519PrivateKey, federation: str, trust: Callable[[], Trust],
        time: Callable[[], float],
    ) -> None:  # fmt: skip
        self._name, self._identity, self._federation = name, identity, federation
        self._trust, self._time = trust, time

    def answer(self, job: Job, task: SummedTask) -> SummedAnswer:
        """Answer a task of a summed phase; raise SecaggError if the device must not go on."""
        if task.phase not in task.plan.summed_phases:
            raise SecaggError(
                SecaggFault.OTHER_TERMS, f"the phase {task.question.phase[:32]} is not summed in this run"
            )
        if not task.step:
            return self._begin(job, task)
        saved, state = task.state.saved.masked, task.state
        if saved is None or not saved.book or saved.phase != task.phase:
            raise SecaggError(SecaggFault.OVER, "this device has begun no attempt of this phase")
        instances = {stage: self._instance(state, saved.book_of(stage)) for stage in task.stages}
        if not is_of_attempt(bodies(task.arrays), instances[VALUES].book.terms):
            raise SecaggError(
                SecaggFault.OVER, "the task is of another attempt than the newest of this device"
            )
        released = self._noise_to_count(task, instances[VALUES])
        try:
            found, saved = self._step(task, instances, saved)
        except SecaggError:
            for instance in instances.values():
                instance.end()
            state.save_masked(_with_books(state, saved, instances))
            raise
        saved = _with_books(state, saved, instances)
        return SummedAnswer(found, {}, saved.ended() if task.step == SumStep.UNMASK else saved, released)

    @staticmethod
    def _noise_to_count(task: SummedTask, instance: Instance) -> Noise | None:
        """Return the noise of a vector that is masked for the first time; sent again, it is no new release."""
        if task.step != SumStep.MASKED or instance.book.vector:
            return None
        noise = _noise_of(task.plan, instance.book.terms)
        return None if noise is None else noise.mechanism.noise

    def _instance(self, state: DeviceState, book: str) -> Instance:
        return Instance(self._name, self._identity, read_book(own_bytes(state, book)))

    def _begin(self, job: Job, task: SummedTask) -> SummedAnswer:
        """Train, encode the update, and make the keys of an attempt. If the update is known, use it again."""
        state, question, saved = task.state, task.question, task.state.saved.masked
        terms = {stage: read_announced(bodies(task.arrays), stage) for stage in task.stages}
        most = read_most(task.arrays)
        self._check(task, terms, most)
        received, model = method_arrays(task.arrays), hash_of(task.arrays).hex()
        place = task.phase, question.round, model
        if saved is not None and not saved.book and saved.round >= question.round:
            raise SecaggError(SecaggFault.OVER, "a damaged disk has lost the attempts of this round")
        known = saved is not None and (saved.phase, saved.round, saved.model) == place
        if saved is not None and known and saved.payload:
            payload: Arrays = state.store.load(bytes.fromhex(saved.payload))
            metrics = state.metrics_of(task.phase)
        else:
            payload, metrics = job.run(task.phase, question.round, received)
        instances = {}
        for stage in task.stages:
            book = saved.book_of(stage) if saved else ""
            past = read_book(own_bytes(state, book)).past if book else PastAttempts()
            if stage == PRESENCE and terms[stage].apart:
                past = replace(past, spent=False)  # `apart` limits how the cohort of another count may differ
            instances[stage] = Instance.begin(self._name, self._identity, terms[stage], past)
        layout, words = encoded(task, terms[VALUES], payload, received, most)
        masked = MaskedState(*place, "", state.store.put(payload).object.hex(), put_words(state, words))
        if task.plan.dp is not None:
            masked = replace(masked, noise=put_bytes(state, noise_key()))  # New noise for each attempt.
        if PRESENCE in terms:
            present = layout.present(payload, task.counts).astype(np.int64)
            held = presence_words(terms[PRESENCE].field, present)
            masked = replace(masked, held=put_words(state, held))
        keys = {array_name(stage, "keys"): as_array(one.keys()) for stage, one in instances.items()}
        return SummedAnswer(keys, dict(metrics), _with_books(state, masked, instances))

    def _check(self, task: SummedTask, terms: Mapping[Stage, Terms], most: int) -> None:
        """Raise SecaggError if the terms are not those of the signed plan and of this task."""
        settings, given = task.settings, terms[VALUES]
        apart = apart_of(task.averaged, settings.strict_cohort, settings.holders)
        try:
            devices = given.field.devices
            field = summed_field(task.plan, devices)
            expected = Terms(
                self._federation, task.run, task.question.round, given.attempt, VALUES, base_of(task.arrays, most),
                given.length, field, settings.least, apart,
            )  # fmt: skip
            presence = replace(
                expected, stage=PRESENCE, length=task.plan.classes, field=presence_field(devices)
            )
        except ValueError as error:
            raise SecaggError(SecaggFault.OTHER_TERMS, str(error)) from None
        if terms != {stage: expected if stage == VALUES else presence for stage in task.stages}:
            raise SecaggError(
                SecaggFault.OTHER_TERMS, "the terms of the attempt are not those of the plan and of the task"
            )

    def _step(
        self, task: SummedTask, instances: Mapping[Stage, Instance], saved: MaskedState
    ) -> tuple[Mapping[str, Array], MaskedState]:
        if task.step == SumStep.SHARES:
            directory = admitted(unpack_records(task.sent(VALUES, "records")), self._trust(), self._time())
            shared = {
                array_name(stage, "shares"): as_array(one.shares(task.sent(stage, "roster"), directory))
                for stage, one in instances.items()
            }
            return shared, saved
        stage: Stage = PRESENCE if task.step.startswith(f"{PRESENCE}.") else VALUES
        if stage not in instances:
            raise SecaggError(SecaggFault.MALFORMED, f"the phase has no stage {stage}")
        instance = instances[stage]
        match task.step.rpartition(".")[2]:
            case SumStep.MASKED:
                return self._masked(task, stage, instances, saved)
            case SumStep.AGREE:
                survivors = task.sent(stage, "survivors")
                if stage == VALUES and PRESENCE in instances:
                    _check_holders(task, instances, saved, survivors)
                signed = as_array(instance.agree(survivors))
                return {array_name(stage, "signature"): signed}, saved
            case SumStep.UNMASK:
                released = as_array(instance.unmask(task.sent(stage, "signatures")))
                return {array_name(stage, "released"): released}, saved
        raise SecaggError(SecaggFault.MALFORMED, f"there is no step {task.step[:32]!r}")

    def _masked(
        self, task: SummedTask, stage: Stage, instances: Mapping[Stage, Instance], saved: MaskedState
    ) -> tuple[Mapping[str, Array], MaskedState]:
        state = task.state
        words = own_words(state, saved.held if stage == PRESENCE else saved.words)
        vector = PRESENCE_VECTOR if stage == PRESENCE else vector_name(task.averaged.kinds)
        if stage == VALUES and PRESENCE in instances:
            counts = _counted_holders(task, instances[PRESENCE])
            saved = replace(saved, counts=put_words(state, counts))
            payload = state.store.load(bytes.fromhex(saved.payload))
            layout = summed_layout(task.plan, task.phase, arrays_of_payload(payload))
            few = np.flatnonzero(counts < task.settings.holders)
            words[layout.places_of(few)] = 0  # a class with few holders is absent from the sum
        if stage == VALUES and saved.noise:
            words = _with_noise(words, task.plan, instances[VALUES], own_bytes(state, saved.noise))
        found = instances[stage].masked(task.sent(stage, "first"), task.question.personal, words)
        arrays = {
            vector: as_array(found.vector),
            array_name(stage, "signature"): as_array(found.signature),
            array_name(stage, "opened"): as_array(found.opened),
        }
        return arrays, saved


def _counted_holders(task: SummedTask, presence: Instance) -> Words:
    """Return the number of holders of each class, which the device computes itself from the evidence."""
    roster, book = presence.book.read_roster(), presence.book
    first, survivors = unpack_names(roster, book.first), unpack_names(roster, book.survivors)
    evidence = read_evidence(roster, first, survivors, bodies(task.arrays))
    return presence.checked_sum(evidence)


def _check_holders(
    task: SummedTask, instances: Mapping[Stage, Instance], saved: MaskedState, survivors: bytes
) -> None:
    """Raise SecaggError if devices have dropped out since the holders were counted, and a class may have too few.

    All devices that have dropped out may be holders of the class.
    """
    book = instances[PRESENCE].book
    counted = unpack_names(book.read_roster(), book.survivors)
    left = unpack_names(instances[VALUES].book.read_roster(), survivors)
    counts, lost = own_words(task.state, saved.counts), len(set(counted) - set(left))
    holders = task.settings.holders
    few = [label for label in np.flatnonzero(counts >= holders) if counts[label] < holders + lost]
    if few:
        raise SecaggError(
            SecaggFault.TOO_FEW,
            f"{lost} devices have dropped out since the holders of each class were counted, so class {few[0]} may "
            f"have fewer than {holders} holders in the sum",
        )


def _with_books(state: DeviceState, saved: MaskedState, instances: Mapping[Stage, Instance]) -> MaskedState:
    for stage, instance in instances.items():
        saved = saved.with_book(stage, put_bytes(state, instance.book.encode()))
    return saved


def end_attempt(state: DeviceState) -> None:
    """Delete the secrets and the update of an attempt whose run is over; the device still remembers the attempt."""
    saved = state.saved.masked
    if saved is None or not (saved.payload or saved.words):
        return
    try:
        ended = saved.ended()
        for stage in STAGES:
            if name := saved.book_of(stage):
                book = read_book(own_bytes(state, name)).ended()
                ended = ended.with_book(stage, put_bytes(state, book.encode()))
    except (DamagedError, SecaggError):
        ended = saved.lost()
    state.save_masked(ended)


def demand_enrolment(plan: Plan, sums: MaskedSums | None) -> None:
    """Raise SettingsError if a run sums masked updates and this device cannot take part."""
    if plan.secagg is not None and sums is None:
        raise SettingsError(NO_ENROLMENT)


def encoded(
    task: SummedTask, terms: Terms, payload: Arrays, received: Arrays, most: int
) -> tuple[VectorLayout, Words]:
    """Return the contribution of an update as words of the field, or raise SecaggError."""
    _check_room(task, terms)
    try:
        if (rows := rows_with_noise(task.plan)) is not None:
            payload, received = PrivateRows(rows, task.plan.classes, task.counts).tables(payload, received)
        layout = summed_layout(task.plan, task.phase, arrays_of_payload(payload))
        vector = layout.vector(payload, received, task.examples, most, task.counts)
    except ValueError as error:
        raise SecaggError(SecaggFault.OTHER_TERMS, str(error)) from None
    if len(vector) != terms.length:
        raise SecaggError(
            SecaggFault.OTHER_TERMS, f"the update has {len(vector)} numbers, the attempt {terms.length}"
        )
    if noise := _noise_of(task.plan, terms):
        whole_numbers(payload, received)  # The update must have no array that neither has noise nor is known.
        vector = noise.mechanism.whole(vector).astype(np.float64)
    return layout, terms.field.encode(vector)


def _check_room(task: SummedTask, terms: Terms) -> None:
    """Raise SecaggError if this device has so many samples that sums over them could be too large for the field."""
    dp, sums = task.plan.dp, task.plan.sums
    if dp is None or sums is None:
        return
    try:
        demand_room(dp, task.settings, terms.field.devices, sums, task.examples)
    except SettingsError as error:
        raise SecaggError(SecaggFault.OUT_OF_RANGE, str(error)) from None


def _noise_of(plan: Plan, terms: Terms) -> SharedNoise | None:
    return noise_of_sum(plan, terms.length, terms.field.devices)


def _with_noise(words: Words, plan: Plan, instance: Instance, key: bytes) -> Words:
    """Return the words with the noise of this device. The same key and roster give the same noise."""
    terms = instance.book.terms
    noise = _noise_of(plan, terms)
    assert noise is not None, "only a run with dp has a key for noise"
    part = noise.part(instance.book.read_roster().enough, key)
    return terms.field.add(words, terms.field.wrapped(part))


def harmless(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that say nothing about the samples of a device."""
    return {name: value for name, value in metrics.items() if name.partition(".")[0] in HARMLESS}


def bodies(arrays: Arrays) -> ByteArrays:
    """Return the arrays of bytes that belong to an attempt."""
    own = [name for name in arrays if name.startswith(CONTROL)]
    return {name: found for name in own if (found := arrays[name]).dtype == np.uint8}  # type: ignore[misc]


def put_bytes(state: DeviceState, data: bytes) -> str:
    """Store bytes in the device's own store, and return the name of their object."""
    return state.store.put({OWN: as_array(data)}).object.hex()


def own_bytes(state: DeviceState, name: str) -> bytes:
    return np.asarray(state.store.load(bytes.fromhex(name))[OWN]).tobytes()


def put_words(state: DeviceState, words: Words) -> str:
    return put_bytes(state, words.astype("<u4").tobytes())


def own_words(state: DeviceState, name: str) -> Words:
    """Return a copy of the words in an object of the device's own store."""
    return np.frombuffer(own_bytes(state, name), "<u4").astype(np.uint32)
