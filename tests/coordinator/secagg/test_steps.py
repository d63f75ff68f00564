"""Lying devices: a wrong answer makes its device a dropout, and no other device is affected."""

from dataclasses import replace
from itertools import pairwise
from weakref import finalize

import numpy as np
import pytest

from protofleet.coordinator.secagg.steps import AttemptEndedError, conduct
from protofleet.protocol.secagg.control_arrays import SumStep, array_name, as_array, pack_names
from protofleet.protocol.secagg.faults import SecaggFault
from protofleet.protocol.secagg.roster import read_keys
from protofleet.protocol.secagg.sealing import SEALED_PAIR
from protofleet.protocol.secagg.shares import NO_SHARE, SHARE
from protofleet.protocol.secagg.signing import sign
from tests.support.secagg_fleet import (
    IDENTITIES,
    NAMES,
    STEPS,
    VECTOR,
    Fleet,
    directory,
    numbers,
    plain_sum,
    terms,
)
from tests.support.small_order import RECEIVE

LIAR = NAMES[2]
KEYS, SHARES, SIGNATURE, OPENED, RELEASED = (
    array_name("values", part) for part in ("keys", "shares", "signature", "opened", "released")
)


def changed(data, place, by=1):
    found = np.array(data)
    found[place] ^= by
    return found


def lying(step, change, liars=(LIAR,)):
    """Return a function that changes the answers of the liars to one step."""

    def lie(asked, name, answer):
        return {**answer, **change(answer)} if asked is step and name in liars else answer

    return lie


def attempt(devices, lie, **changes):
    fleet = Fleet(terms(devices, **changes), numbers(devices), lie=lie)
    return fleet, fleet.run()


def test_an_attempt_has_five_steps_with_messages_of_the_stated_sizes():
    fleet = Fleet(terms(6), numbers(6), {NAMES[5]: SumStep.MASKED}).begin()
    steps, asked, replies = conduct(fleet.terms, fleet.enrolled, fleet.instances, VECTOR, b"records"), [], []
    question = next(steps)
    with pytest.raises(StopIteration):
        while True:
            asked.append(question)
            replies.append(fleet.answers(question))
            question = steps.send(replies[-1])
    assert [question.step for question in asked] == list(STEPS)
    shared = [{name: len(array) for name, array in question.shared.items()} for question in asked]
    assert shared == [
        {}, {"control.values.roster": 6 * 162, "control.values.records": 7}, {"control.values.first": 1},
        {"control.values.survivors": 1}, {"control.values.signatures": 5 * 66},
    ]  # fmt: skip
    assert [len(question.personal) for question in asked] == [0, 0, 6, 0, 0]
    assert len(asked[2].personal[LIAR][SHARES]) == 5 * SEALED_PAIR
    sizes = [{name: len(array) for name, array in reply[LIAR].items()} for reply in replies]
    assert sizes == [
        {KEYS: 160}, {SHARES: 5 * 82}, {VECTOR: 12, SIGNATURE: 64, OPENED: 1}, {SIGNATURE: 64},
        {RELEASED: 6 * 33},
    ]  # fmt: skip
    assert [question.enough for question in asked] == [3, 5, 5, 5, 5]


def test_replayed_answers_give_the_same_messages_and_the_same_sum():
    fleet = Fleet(terms(4), numbers(4)).begin()
    answers, seen = [], []
    for _ in range(2):
        steps = conduct(fleet.terms, fleet.enrolled, fleet.instances, VECTOR)
        question, replayed = next(steps), iter(list(answers))
        with pytest.raises(StopIteration) as end:
            while True:
                seen.append((question.step, *sorted((k, v.tobytes()) for k, v in question.shared.items())))
                reply = next(replayed, None) or fleet.answers(question)
                answers.append(reply)
                question = steps.send(reply)
        seen.append(end.value.value.words.tolist())
    assert seen[:6] == seen[6:]


@pytest.mark.parametrize(
    ("step", "change", "why"),
    [
        (SumStep.KEYS, lambda a: {KEYS: a[KEYS][:-1]}, SecaggFault.MALFORMED),
        (SumStep.KEYS, lambda a: {KEYS: changed(a[KEYS], 3)}, SecaggFault.BAD_SIGNATURE),
        (SumStep.KEYS, lambda a: {KEYS: changed(a[KEYS], 159)}, SecaggFault.BAD_SIGNATURE),
        (SumStep.KEYS, lambda a: {KEYS: as_array(RECEIVE[0] + a[KEYS].tobytes()[32:])}, SecaggFault.BAD_KEYS),
        (SumStep.KEYS, lambda a: {KEYS: a[KEYS].astype(np.int64)}, SecaggFault.MALFORMED),
        (SumStep.SHARES, lambda a: {SHARES: a[SHARES][:-1]}, SecaggFault.MALFORMED),
        (SumStep.SHARES, lambda a: {SHARES: np.append(a[SHARES], np.uint8(0))}, SecaggFault.MALFORMED),
        (SumStep.MASKED, lambda a: {VECTOR: a[VECTOR][:-1]}, SecaggFault.MALFORMED),
        (SumStep.MASKED, lambda a: {VECTOR: changed(a[VECTOR], 0)}, SecaggFault.BAD_SIGNATURE),
        (SumStep.MASKED, lambda a: {SIGNATURE: as_array(bytes(64))}, SecaggFault.BAD_SIGNATURE),
        (SumStep.MASKED, lambda a: {OPENED: as_array(b"\x00")}, SecaggFault.WRONG_SET),
        (SumStep.MASKED, lambda a: {OPENED: as_array(b"\xff")}, SecaggFault.MALFORMED),
        (SumStep.AGREE, lambda a: {SIGNATURE: changed(a[SIGNATURE], 5)}, SecaggFault.BAD_SIGNATURE),
        (SumStep.AGREE, lambda a: {SIGNATURE: a[SIGNATURE][:-1]}, SecaggFault.BAD_SIGNATURE),
        (SumStep.UNMASK, lambda a: {RELEASED: a[RELEASED][:-1]}, SecaggFault.MALFORMED),
        (SumStep.UNMASK, lambda a: {RELEASED: changed(a[RELEASED], 32, 2)}, SecaggFault.MALFORMED),
    ],
)
def test_a_wrong_answer_is_refused_on_arrival_and_the_others_have_their_sum(step, change, why):
    """The device with the wrong answer is a dropout of this step."""
    found = []

    class Watched(Fleet):
        def answers(self, question):
            replies = super().answers(question)
            checks = {name: question.check(name, reply) for name, reply in replies.items()}
            found.extend((name, error.why) for name, error in checks.items() if error)
            return replies

    fleet = Watched(terms(6), numbers(6), lie=lying(step, change))
    total = fleet.run()
    assert found[:1] == [(LIAR, why)]
    gone = STEPS.index(step) <= STEPS.index(SumStep.MASKED)
    assert total.survivors == tuple(name for name in NAMES[:6] if not gone or name != LIAR)
    assert np.array_equal(total.words, plain_sum(fleet.terms, fleet.vectors, total.survivors))


def test_a_device_that_is_not_in_the_directory_is_refused():
    fleet = Fleet(terms(4), numbers(4)).begin()
    question = next(conduct(fleet.terms, directory(3), fleet.instances, VECTOR))
    refused = {name: question.check(name, reply) for name, reply in fleet.answers(question).items()}
    assert [name for name, error in refused.items() if error] == [NAMES[3]]
    assert refused[NAMES[3]].why is SecaggFault.NOT_ENROLLED


def test_shares_that_some_devices_cannot_open_do_not_change_the_sum():
    """The liar seals nonsense to two of eight others; its seed is recovered from the others."""

    def nonsense(answer):
        return {SHARES: changed(answer[SHARES], [0, SEALED_PAIR])}

    fleet, total = attempt(9, lying(SumStep.SHARES, nonsense))
    assert len(total.survivors) == 9
    assert np.array_equal(total.words, plain_sum(fleet.terms, fleet.vectors, total.survivors))
    assert not total.wrong_shares


def test_shares_that_no_device_can_open_end_the_attempt_early_and_the_error_names_the_liar():
    def nonsense(answer):
        return {SHARES: answer[SHARES] ^ np.uint8(1)}

    fleet = Fleet(terms(6), numbers(6), lie=lying(SumStep.SHARES, nonsense))
    with pytest.raises(
        AttemptEndedError, match=f"the shares of {LIAR} could be opened by fewer than 5"
    ) as error:
        fleet.run()
    assert error.value.suspects == (LIAR,)
    assert error.value.why is SecaggFault.BAD_SHARES
    past = {name: device.book.past for name, device in fleet.instances.items() if name != LIAR}
    assert not any(one.spent for one in past.values())
    again = Fleet(
        replace(fleet.terms, attempt=bytes([2]) * 16), {name: fleet.vectors[name] for name in past}, past=past
    )
    assert again.run().survivors == tuple(past)


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_device_that_releases_wrong_shares_is_found_and_the_sum_is_right(place):
    """One of six shares more than the threshold is enough to find one liar."""
    liar = NAMES[place]
    fleet, total = attempt(
        6, lying(SumStep.UNMASK, lambda a: {RELEASED: changed(a[RELEASED], slice(0, None, SHARE))}, [liar])
    )
    assert np.array_equal(total.words, plain_sum(fleet.terms, fleet.vectors, total.survivors))
    assert total.wrong_shares == {liar: frozenset(NAMES[:6])}


def test_three_liars_of_twenty_are_found_and_the_sum_is_right():
    liars = [NAMES[0], NAMES[7], NAMES[19]]
    fleet, total = attempt(
        20, lying(SumStep.UNMASK, lambda a: {RELEASED: changed(a[RELEASED], slice(1, None, SHARE))}, liars)
    )
    assert np.array_equal(total.words, plain_sum(fleet.terms, fleet.vectors, total.survivors))
    assert set(total.wrong_shares) == set(liars)


def test_too_many_wrong_shares_end_the_attempt():
    liars = NAMES[:2]
    lie = lying(SumStep.UNMASK, lambda a: {RELEASED: changed(a[RELEASED], 0)}, liars)
    with pytest.raises(AttemptEndedError, match=f"6 shares of {NAMES[0]}, of which 5 are needed") as error:
        Fleet(terms(6), numbers(6), lie=lie).run()
    assert NAMES[0] in error.value.suspects


def test_missing_shares_of_a_device_are_not_counted():
    """A device of six drops out after the step `shares`, and one of the others has no share of it."""
    gone = NAMES[5]

    def none(answer):
        return {RELEASED: as_array(answer[RELEASED].tobytes()[: 5 * SHARE] + NO_SHARE)}

    fleet = Fleet(terms(6), numbers(6), {gone: SumStep.MASKED}, lying(SumStep.UNMASK, none))
    with pytest.raises(AttemptEndedError, match=f"4 shares of {gone}, of which 5 are needed"):
        fleet.run()


def test_only_a_device_that_copies_the_keys_of_another_device_is_left_out():
    fleet = Fleet(terms(6), numbers(6)).begin()
    stolen = fleet.instances[NAMES[0]].keys()
    total = replace(fleet, lie=lying(SumStep.KEYS, lambda answer: {KEYS: as_array(stolen)})).run()
    assert total.survivors == tuple(name for name in NAMES[:6] if name != LIAR)


def test_a_device_that_signs_copied_keys_and_the_owner_of_the_keys_are_left_out():
    fleet = Fleet(terms(6), numbers(6)).begin()
    stolen = read_keys(NAMES[0], fleet.instances[NAMES[0]].keys())
    public = stolen.sealing, stolen.masking, stolen.commitment
    signature = sign(IDENTITIES[LIAR], "keys", fleet.terms.hash, LIAR, *public)
    copied = as_array(b"".join((*public, signature)))
    total = replace(fleet, lie=lying(SumStep.KEYS, lambda answer: {KEYS: copied})).run()
    assert total.survivors == tuple(name for name in NAMES[:6] if name not in (LIAR, NAMES[0]))


def test_a_sum_that_honest_devices_cannot_have_is_refused():
    """A device may mask any words. It cannot be named, but its sum is not used."""
    fleet = Fleet(terms(4), numbers(4)).begin()

    class Liar(Fleet):
        def answer(self, question, name):
            if question.step is SumStep.MASKED and name == LIAR:
                self = replace(
                    self, terms=replace(self.terms, field=replace(self.terms.field, limit=9000.0, bits=32))
                )
                self = replace(self, vectors={**self.vectors, LIAR: np.full(4, 8000.0)})
                return Fleet.answer(self, question, name)
            return super().answer(question, name)

    liar = Liar(fleet.terms, fleet.vectors, instances=fleet.instances)
    with pytest.raises(AttemptEndedError, match="4 of 4 numbers of the sum are larger than 4 times") as error:
        liar.run()
    assert error.value.why is SecaggFault.OUT_OF_RANGE


def test_too_few_answers_end_the_attempt_and_the_error_names_the_missing_devices():
    falls = dict.fromkeys(NAMES[3:6], SumStep.AGREE)
    with pytest.raises(
        AttemptEndedError, match="3 of 6 devices gave a valid answer to the step 'agree'"
    ) as error:
        Fleet(terms(6), numbers(6), falls).run()
    assert (error.value.step, error.value.why) == (SumStep.AGREE, SecaggFault.TOO_FEW)
    assert all(name in str(error.value) for name in falls)


@pytest.mark.parametrize("step", STEPS[1:])
def test_only_an_attempt_that_ends_in_its_last_step_has_spent_the_round(step):
    """Devices that have helped to unmask join no other attempt of the round; all others do."""
    fleet = Fleet(terms(4), numbers(4), dict.fromkeys(NAMES[:2], step))
    with pytest.raises(AttemptEndedError, match="but 3 are needed") as error:
        fleet.run()
    spent = [device.book.past.spent for device in fleet.instances.values()]
    assert error.value.spent is any(spent) is (step is SumStep.UNMASK)


def test_a_cohort_close_to_the_last_one_ends_the_attempt_before_the_unmasking():
    fleet = Fleet(terms(6, apart=3), numbers(6), {NAMES[5]: SumStep.MASKED})
    with pytest.raises(AttemptEndedError, match=f"differ only by {NAMES[5]}; they must be the same") as error:
        fleet.run(previous=NAMES[:6])
    assert error.value.why is SecaggFault.CLOSE_COHORT
    assert not any(device.book.survivors for device in fleet.instances.values())


def test_fewer_devices_than_the_terms_require_give_no_sum():
    falls = {NAMES[5]: SumStep.MASKED}
    with pytest.raises(AttemptEndedError, match="but 6 are needed"):
        Fleet(terms(6, least=6), numbers(6), falls).run()


def test_presence_and_values_have_different_keys():
    fleet = Fleet(terms(4), numbers(4)).begin()
    other = Fleet(terms(4, stage="presence"), numbers(4)).begin()
    keys = [
        device.keys()[at : at + 32]
        for one in (fleet, other)
        for device in one.instances.values()
        for at in (0, 32)
    ]
    assert len(set(keys)) == 16
    assert all(one.terms.hash != two.terms.hash for one, two in pairwise([fleet, other]))
    question = other.run(until=SumStep.SHARES)
    assert list(question.shared) == ["control.presence.roster"]


def test_two_equal_sets_have_equal_bitmaps():
    found = Fleet(terms(4), numbers(4)).run()
    assert pack_names(found.roster, found.survivors) == b"\x0f"


def test_one_vector_at_a_time_is_read_from_the_answers():
    """The answers may lie on the disk, so that a large cohort does not fill the memory."""

    class Stored(dict):
        alive = most = 0

        def get(self, name, default=None):
            found = super().get(name, default)
            if name == VECTOR:
                found = found.copy()
                Stored.alive += 1
                Stored.most = max(Stored.most, Stored.alive)
                finalize(found, lambda: setattr(Stored, "alive", Stored.alive - 1))
            return found

    fleet = Fleet(terms(5), numbers(5), lie=lambda step, name, answer: Stored(answer))
    total = fleet.run()
    assert np.array_equal(total.words, plain_sum(fleet.terms, fleet.vectors, total.survivors))
    assert Stored.most == 1
