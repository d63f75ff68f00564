"""The rules of a device in an attempt, against a coordinator that does not follow them."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.coordinator.secagg.steps import conduct
from protofleet.edge_client.secagg.book import read_book
from protofleet.edge_client.secagg.instance import Instance
from protofleet.edge_client.secagg.past_attempts import MOST_ATTEMPTS, PastAttempts
from protofleet.protocol.secagg.control_arrays import (
    SumStep,
    array_name,
    pack_names,
    pack_signatures,
    unpack_names,
)
from protofleet.protocol.secagg.directory import Directory
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.roster import read_keys, roster_of
from protofleet.protocol.secagg.sealing import SEALED_PAIR
from protofleet.protocol.secagg.shares import NO_SHARE, SHARE
from tests.support.secagg_fleet import IDENTITIES, NAMES, Fleet, directory, numbers, plain_sum, terms

FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH = NAMES[:6]


def refused(why):
    """Expect a refusal for this reason."""
    return pytest.raises(SecaggError, check=lambda error: error.why is why)


class World:
    """A fleet with a coordinator that can send each device a different request."""

    def __init__(self, devices, **changes):
        self.names = NAMES[:devices]
        self.terms = terms(devices, **changes)
        self.fleet = Fleet(self.terms, numbers(devices)).begin()
        self.devices = self.fleet.instances
        self.directory = directory(devices)
        self.roster = self.roster_of(self.names)
        self.sealed = {}

    def roster_of(self, names):
        entries = [read_keys(name, self.devices[name].keys()) for name in names]
        return roster_of(self.terms, entries, self.directory)

    def share(self):
        """Ask all devices for their shares."""
        data = self.roster.encode(self.directory)
        for name in self.names:
            rows = self.devices[name].shares(data, self.directory)
            others = [other for other in self.names if other != name]
            for place, other in enumerate(others):
                self.sealed[name, other] = rows[place * SEALED_PAIR : (place + 1) * SEALED_PAIR]
        return self

    def to(self, name, first=None, **changes):
        """Return the bitmap of the devices that shared keys, and the shares for a device."""
        first = first or self.names
        rows = [self.sealed[other, name] for other in first if other != name]
        return pack_names(self.roster, first), b"".join(rows)

    def masked(self, name, first=None, sealed=None, words=None):
        bitmap, rows = self.to(name, first)
        if words is None:
            words = self.terms.field.encode(self.fleet.vectors[name])
        return self.devices[name].masked(bitmap, rows if sealed is None else sealed, words)

    def mask(self):
        """Ask all devices for their masked vectors."""
        self.share()
        for name in self.names:
            self.masked(name)
        return self

    def agree(self, name, survivors):
        return self.devices[name].agree(pack_names(self.roster, survivors))

    def signatures(self, names, survivors):
        return pack_signatures(self.roster, {name: self.agree(name, survivors) for name in names})


def test_the_same_request_gets_the_same_answer_before_and_after_a_restart():
    world = World(4).share()
    everyone = world.names

    def ask(device):
        signatures = world.signatures(everyone[1:], everyone)
        answers = [device.keys(), device.shares(world.roster.encode(world.directory), world.directory)]
        bitmap, rows = world.to(FIRST)
        answers.append(device.masked(bitmap, rows, world.terms.field.encode(world.fleet.vectors[FIRST])))
        answers.append(device.agree(pack_names(world.roster, everyone)))
        return answers, signatures

    for name in everyone[1:]:
        world.masked(name)
    once, signatures = ask(world.devices[FIRST])
    restarted = Instance(FIRST, IDENTITIES[FIRST], read_book(world.devices[FIRST].book.encode()))
    assert ask(restarted)[0] == once
    released = restarted.unmask(signatures)
    assert (
        Instance(FIRST, IDENTITIES[FIRST], read_book(restarted.book.encode())).unmask(signatures) == released
    )


def test_a_device_never_signs_two_sets_of_survivors():
    world = World(6).mask()
    five = world.names[:5]
    world.agree(FIRST, world.names)
    with refused(SecaggFault.CHANGED_QUESTION):
        world.agree(FIRST, five)


def test_a_coordinator_that_sends_two_sets_of_survivors_can_unmask_neither_sum():
    world = World(6).mask()
    five, half = world.names[:5], world.names[:3]
    signed = {name: world.agree(name, world.names if name in half else five) for name in five}
    for survivors, signers in ((world.names, half), (five, five[3:])):
        few = pack_signatures(world.roster, {name: signed[name] for name in signers})
        with refused(SecaggFault.TOO_FEW):
            world.devices[signers[0]].unmask(few)
        with refused(SecaggFault.BAD_SIGNATURE):
            world.devices[signers[0]].unmask(pack_signatures(world.roster, signed))
    assert not any(device.book.past.spent for device in world.devices.values())


def test_a_second_roster_is_refused():
    world = World(5).share()
    with refused(SecaggFault.CHANGED_QUESTION):
        world.devices[FIRST].shares(world.roster_of(world.names[:4]).encode(world.directory), world.directory)


def test_shares_of_another_roster_cannot_be_decrypted():
    world = World(5)
    smaller = world.roster_of(world.names[:4]).encode(world.directory)
    old = world.devices[FIRST].shares(smaller, world.directory)[:SEALED_PAIR]  # for SECOND
    data = world.roster.encode(world.directory)
    for name in world.names[1:]:
        rows = world.devices[name].shares(data, world.directory)
        others = [other for other in world.names if other != name]
        place = others.index(SECOND) if name != SECOND else 0
        world.sealed[name, SECOND] = rows[place * SEALED_PAIR :][:SEALED_PAIR]
    world.sealed[FIRST, SECOND] = old
    assert unpack_names(world.roster, world.masked(SECOND).opened) == world.names[1:]


@pytest.mark.parametrize("source", ["another attempt", "another sender", "another recipient"])
def test_replayed_and_exchanged_shares_cannot_be_decrypted(source):
    world, before = World(5).share(), World(5, attempt=bytes(16)).share()
    wrong = {
        "another attempt": before.sealed[SECOND, FIRST],
        "another sender": world.sealed[THIRD, FIRST],
        "another recipient": world.sealed[SECOND, THIRD],
    }[source]
    world.sealed[SECOND, FIRST] = wrong
    opened = unpack_names(world.roster, world.masked(FIRST).opened)
    assert opened == (FIRST, THIRD, FOURTH, FIFTH)


def test_too_few_decrypted_shares_are_refused_before_the_vector_is_masked():
    world = World(5).share()
    for name in (SECOND, THIRD):
        world.sealed[name, FIRST] = bytes(SEALED_PAIR)
    with refused(SecaggFault.BAD_SHARES):
        world.masked(FIRST)
    assert not world.devices[FIRST].book.vector


def test_too_few_devices_that_shared_keys_are_refused_before_the_vector_is_masked():
    world = World(6, least=6).share()
    with refused(SecaggFault.TOO_FEW):
        world.masked(FIRST, first=world.names[:5])
    with refused(SecaggFault.WRONG_SET):
        world.devices[FIRST].masked(pack_names(world.roster, world.names[1:]), b"", np.zeros(4, np.uint32))
    assert not world.devices[FIRST].book.vector


def test_a_second_set_of_devices_that_shared_keys_is_refused():
    world = World(6).share()
    world.masked(FIRST)
    with refused(SecaggFault.CHANGED_QUESTION):
        world.masked(FIRST, first=world.names[:5])


def test_a_sum_with_two_different_sets_of_key_sharers_cannot_be_unmasked():
    world = World(6).share()
    five = world.names[:5]
    for name in world.names[1:]:
        world.masked(name)
    world.masked(FIRST, first=five)
    with refused(SecaggFault.BAD_SIGNATURE):
        world.devices[SECOND].unmask(world.signatures(five, five))


def test_keys_for_another_model_are_refused_before_shares_are_sent():
    world, other = World(4), World(4, base=bytes(32))
    entries = [read_keys(name, world.devices[name].keys()) for name in world.names[:3]]
    entries.append(read_keys(FOURTH, other.devices[FOURTH].keys()))
    mixed = roster_of(world.terms, entries, world.directory).encode(world.directory)
    with refused(SecaggFault.BAD_SIGNATURE):
        world.devices[FIRST].shares(mixed, world.directory)
    with refused(SecaggFault.BAD_SIGNATURE):
        other.devices[FOURTH].shares(mixed, world.directory)


def test_a_device_without_a_record_is_refused():
    world = World(4)
    with refused(SecaggFault.MALFORMED):
        world.devices[FIRST].shares(world.roster.encode(world.directory), directory(3))


def test_a_device_that_the_coordinator_invented_is_refused():
    world = World(4)
    invented = Directory({**directory(3).keys, FOURTH: directory(20).keys[NAMES[10]]})
    with refused(SecaggFault.BAD_SIGNATURE):
        world.devices[FIRST].shares(world.roster.encode(world.directory), invented)


def test_the_keys_of_a_device_under_a_second_name_are_refused():
    world = World(4)
    copied = replace(world.roster.entry(THIRD), name=SECOND)
    entries = [world.roster.entry(FIRST), copied, world.roster.entry(THIRD), world.roster.entry(FOURTH)]
    data = roster_of(world.terms, entries, world.directory).encode(world.directory)
    with refused(SecaggFault.BAD_KEYS):
        world.devices[FIRST].shares(data, world.directory)


@pytest.mark.parametrize("change", ["missing", "other keys", "other identity"])
def test_a_roster_without_the_devices_own_keys_is_refused(change):
    world = World(4)
    entries, found = list(world.roster), world.directory
    if change == "missing":
        entries = entries[1:]
    elif change == "other keys":
        entries[0] = read_keys(FIRST, World(4).devices[FIRST].keys())
    else:
        found = Directory({**found.keys, FIRST: directory(20).keys[NAMES[10]]})
    data = roster_of(world.terms, entries, found).encode(found)
    with refused(SecaggFault.OWN_ENTRY):
        world.devices[FIRST].shares(data, found)


def test_a_roster_of_fewer_devices_than_the_terms_allow_is_refused():
    world = World(5, least=5)
    with refused(SecaggFault.TOO_FEW):
        world.devices[FIRST].shares(world.roster_of(world.names[:4]).encode(world.directory), world.directory)


def test_survivors_must_include_the_device_and_be_enough_and_have_shared_keys():
    world = World(6).share()
    five = world.names[:5]
    for name in five:
        world.masked(name, first=five)
    for survivors, why in (
        (world.names, SecaggFault.WRONG_SET),
        (five[1:], SecaggFault.WRONG_SET),
        (five[:4], SecaggFault.TOO_FEW),
    ):
        with refused(why):
            world.agree(FIRST, survivors)


def test_signatures_of_devices_that_are_not_survivors_do_not_count():
    world = World(6).mask()
    five = world.names[:5]
    signed = {name: world.agree(name, five) for name in five[:4]}
    signed[SIXTH] = signed[FIRST]
    with refused(SecaggFault.WRONG_SET):
        world.devices[FIRST].unmask(pack_signatures(world.roster, signed))


def test_a_device_releases_one_share_of_each_device_and_never_the_other():
    world = World(6).mask()
    five = world.names[:5]
    pairs = world.devices[FIRST].book.secrets.opened
    released = world.devices[FIRST].unmask(world.signatures(five, five))
    rows = [released[at : at + SHARE] for at in range(0, len(released), SHARE)]
    assert rows == [pair[SHARE:] for pair in pairs[:5]] + [pairs[5][:SHARE]]
    with refused(SecaggFault.CHANGED_QUESTION):
        world.agree(FIRST, world.names)


def test_a_share_that_could_not_be_decrypted_is_released_as_no_share():
    world = World(6).share()
    world.sealed[SECOND, FIRST] = bytes(SEALED_PAIR)
    for name in world.names:
        world.masked(name)
    released = world.devices[FIRST].unmask(world.signatures(world.names, world.names))
    assert released[SHARE : 2 * SHARE] == NO_SHARE
    assert released.count(NO_SHARE) == 1


def test_a_second_vector_in_the_same_attempt_is_refused():
    world = World(4).mask()
    words = world.terms.field.encode(world.fleet.vectors[FIRST])
    with refused(SecaggFault.CHANGED_QUESTION):
        world.masked(FIRST, words=words + np.uint32(1))
    assert world.masked(FIRST, words=words) == world.masked(FIRST)


@pytest.mark.parametrize("step", ["masked", "agree", "unmask"])
def test_a_request_after_a_skipped_step_is_refused(step):
    world = World(4)
    if step != "masked":
        world.share()
    if step == "unmask":
        for name in world.names:
            world.masked(name)
    ask = {
        "masked": lambda: world.devices[FIRST].masked(b"\x0f", b"", np.zeros(4, np.uint32)),
        "agree": lambda: world.agree(FIRST, world.names),
        "unmask": lambda: world.devices[FIRST].unmask(b""),
    }[step]
    with refused(SecaggFault.OVER):
        ask()


def test_an_ended_attempt_refuses_every_request_and_keeps_no_secret():
    world = World(4).mask()
    device = world.devices[FIRST]
    secrets = device.book.secrets
    device.end()
    for ask in (
        device.keys,
        lambda: device.shares(world.roster.encode(world.directory), world.directory),
        lambda: world.masked(FIRST),
        lambda: world.agree(FIRST, world.names),
        lambda: device.unmask(b""),
    ):
        with refused(SecaggFault.OVER):
            ask()
    kept = device.book.encode()
    secret_bytes = [secrets.sealing, secrets.masking, secrets.seed, secrets.own, *secrets.opened]
    assert not any(one in kept for one in secret_bytes)


def test_the_secrets_are_deleted_when_the_sum_is_unmasked():
    world = World(4).mask()
    device = world.devices[FIRST]
    secrets = device.book.secrets
    device.unmask(world.signatures(world.names, world.names))
    kept = device.book.encode()
    assert not any(one in kept for one in (secrets.sealing, secrets.masking, secrets.seed, secrets.own))


def test_a_device_helps_to_unmask_only_one_sum_of_a_round():
    """The difference of two sums of one round would be the vector of one device."""
    world = World(5)
    world.fleet.run()
    past = world.devices[FIRST].book.past
    again = terms(5, attempt=bytes([2]) * 16)
    with refused(SecaggFault.SPENT):
        Instance.begin(FIRST, IDENTITIES[FIRST], again, past)
    Instance.begin(FIRST, IDENTITIES[FIRST], replace(again, round=4), past)


def test_a_used_nonce_and_an_older_round_are_refused():
    past = PastAttempts()
    for attempt in range(MOST_ATTEMPTS):
        agreed = terms(3, attempt=bytes([attempt]) * 16)
        past = past.with_attempt(agreed)
        with refused(SecaggFault.SEEN_ATTEMPT):
            past.with_attempt(agreed)
    with refused(SecaggFault.SEEN_ATTEMPT):
        past.with_attempt(terms(3, attempt=bytes([200]) * 16))
    with refused(SecaggFault.OLD_ROUND):
        past.with_attempt(terms(3, attempt=bytes([200]) * 16, round=2))
    assert past.with_attempt(terms(3, attempt=bytes(16), round=4)).nonces == (bytes(16),)


def test_two_attempts_of_a_device_have_different_keys():
    one, other = World(3), World(3)
    for name in one.names:
        first, second = (read_keys(name, world.devices[name].keys()) for world in (one, other))
        assert len({first.sealing, first.masking, second.sealing, second.masking}) == 4
        assert first.commitment != second.commitment


def test_a_cohort_too_similar_to_the_last_one_is_refused_if_the_terms_demand_it():
    """Prototypes move little, so the difference of two sums would show one device's prototypes."""
    world = World(6)
    world.fleet.run()
    past = {name: device.book.past for name, device in world.devices.items()}
    later = terms(6, round=4, apart=3)
    fleet = Fleet(later, numbers(6), {SIXTH: SumStep.MASKED}, past=past)
    question = fleet.run(until=SumStep.AGREE)
    with refused(SecaggFault.CLOSE_COHORT):
        fleet.answer(question, FIRST)
    same = Fleet(replace(later, attempt=bytes([9]) * 16), numbers(6), past=past)
    assert len(same.run(previous=NAMES[:6]).survivors) == 6


def test_a_device_computes_the_sum_itself_and_refuses_a_changed_one():
    fleet = Fleet(terms(5, stage="presence"), numbers(5), {FIFTH: SumStep.MASKED})
    found = fleet.run()
    device = fleet.instances[SECOND]
    assert np.array_equal(device.checked_sum(found.evidence), found.words)
    assert np.array_equal(found.words, plain_sum(fleet.terms, fleet.vectors, NAMES[:4]))
    vectors, secrets = found.evidence.vectors, found.evidence.secrets
    liar = bytes([vectors[FIRST][0] ^ 1]) + vectors[FIRST][1:]
    swapped = {**secrets.seeds, FIRST: secrets.seeds[SECOND]}
    for changed, why in (
        (replace(found.evidence, vectors={**vectors, FIRST: liar}), SecaggFault.BAD_SIGNATURE),
        (replace(found.evidence, secrets=replace(secrets, seeds=swapped)), SecaggFault.BAD_SHARES),
        (replace(found.evidence, secrets=replace(secrets, lost={FIFTH: bytes(32)})), SecaggFault.BAD_SHARES),
        (replace(found.evidence, secrets=replace(secrets, lost={})), SecaggFault.WRONG_SET),
        (replace(found.evidence, vectors={FIRST: vectors[FIRST]}), SecaggFault.WRONG_SET),
    ):
        with refused(why):
            device.checked_sum(changed)


def test_the_coordinator_refuses_keys_that_another_identity_signed():
    """So another process cannot answer in the name of a device."""
    world = World(3)
    stranger = Instance.begin(FIRST, Ed25519PrivateKey.generate(), world.terms, PastAttempts())
    question = next(conduct(world.terms, world.directory, world.names, "weights.masked"))
    name = array_name("values", "keys")
    good = {name: np.frombuffer(world.devices[FIRST].keys(), np.uint8)}
    assert question.check(FIRST, good) is None
    found = question.check(FIRST, {name: np.frombuffer(stranger.keys(), np.uint8)})
    assert found is not None
    assert found.why is SecaggFault.BAD_SIGNATURE
