from dataclasses import replace

import numpy as np
import pytest

from protofleet.protocol.secagg.control_arrays import (
    bytes_in,
    pack_names,
    pack_signatures,
    rows_in,
    unpack_names,
    unpack_signatures,
)
from protofleet.protocol.secagg.evidence import evidence_arrays, read_evidence
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.roster import KEYS, ROW, read_keys, read_roster, roster_of
from protofleet.protocol.secagg.total import unmasked_sum
from tests.support.secagg_fleet import NAMES, STEPS, Fleet, directory, numbers, terms
from tests.support.small_order import RECEIVE


def roster(devices):
    fleet = Fleet(terms(devices), numbers(devices)).begin()
    entries = [read_keys(name, device.keys()) for name, device in fleet.instances.items()]
    return roster_of(fleet.terms, reversed(entries), directory())


def test_a_roster_is_sorted_by_name_and_is_read_back_from_its_bytes():
    found = roster(4)
    data = found.encode(directory())
    assert found.names == NAMES[:4]
    assert len(data) == 4 * ROW == 4 * 162
    assert read_roster(found.terms, data, directory()) == found
    assert [found.point(name) for name in found.names] == [1, 2, 3, 4]
    found.verify()


def test_a_changed_device_number_in_a_roster_row_is_refused():
    found = roster(3)
    data = bytearray(found.encode(directory()))
    data[0:2] = (0).to_bytes(2, "little")
    data[2 * ROW : 2 * ROW + 2] = (7).to_bytes(2, "little")
    other = read_roster(found.terms, bytes(data), directory())
    assert other.names == (*NAMES[:2], NAMES[7])
    with pytest.raises(SecaggError, match=f"{NAMES[7]}'s signature of 'keys' is not valid"):
        other.verify()


@pytest.mark.parametrize("numbers_of_rows", [(1, 0, 2), (0, 0, 1), (0, 1, 20), (0, 1, 65535)])
def test_rows_that_are_unsorted_repeated_or_of_unknown_devices_are_refused(numbers_of_rows):
    data = b"".join(number.to_bytes(2, "little") + bytes(KEYS) for number in numbers_of_rows)
    with pytest.raises(SecaggError, match="a roster with device"):
        read_roster(terms(3), data, directory())


@pytest.mark.parametrize("size", [1, ROW - 1, ROW + 1, 4 * ROW])
def test_a_roster_of_a_wrong_size_is_refused(size):
    with pytest.raises(SecaggError, match="at most 3 rows of 162 bytes"):
        read_roster(terms(3), bytes(size), directory())


@pytest.mark.parametrize("part", ["sealing", "masking"])
@pytest.mark.parametrize("weak", RECEIVE[:4])
def test_a_weak_key_is_refused(part, weak):
    found = roster(3)
    entry = replace(found.entries[0], **{part: weak})
    with pytest.raises(SecaggError, match="sent a weak key") as error:
        entry.verify(found.terms, found.identities[0])
    assert error.value.why is SecaggFault.BAD_KEYS


def test_the_signature_covers_each_byte_of_the_keys():
    found = roster(3)
    data = found.entries[0].encode()
    for place in range(0, KEYS, 7):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(SecaggError, match=r"signature of 'keys'|weak key"):
            read_keys(NAMES[0], changed).verify(found.terms, found.identities[0])


def test_the_hash_of_a_roster_depends_on_each_entry_and_identity():
    found = roster(3)
    swapped = replace(found, identities=found.identities[::-1])
    fewer = replace(found, entries=found.entries[:2], identities=found.identities[:2])
    assert len({found.hash, swapped.hash, fewer.hash, roster(3).hash}) == 4


def test_bitmaps_and_signatures_are_unpacked_unchanged():
    found = roster(9)
    for names in ((), found.names, found.names[::2], found.names[8:]):
        assert unpack_names(found, pack_names(found, names)) == names
        signatures = {name: bytes([place]) * 64 for place, name in enumerate(names)}
        data = pack_signatures(found, signatures)
        assert unpack_signatures(found, data) == signatures
        assert len(data) == 66 * len(names)


@pytest.mark.parametrize("wrong", [b"", b"\x00", b"\x00\x02", b"\x00\x00\x00"])
def test_a_bitmap_of_a_wrong_length_or_of_unknown_devices_is_refused(wrong):
    with pytest.raises(SecaggError, match="no bitmap of 9 devices"):
        unpack_names(roster(9), wrong)


def test_repeated_signatures_and_signatures_of_unknown_devices_are_refused():
    found = roster(3)
    for places in ((3,), (1, 1), (0, 1, 2, 2)):
        rows = b"".join(place.to_bytes(2, "little") + bytes(64) for place in places)
        with pytest.raises(SecaggError, match="unknown or twice|one row of 66 bytes"):
            unpack_signatures(found, rows)
    with pytest.raises(SecaggError, match="of signatures"):
        unpack_signatures(found, bytes(65))


def test_arrays_of_another_type_or_shape_are_refused():
    good = np.zeros(3, np.uint8)
    assert bytes_in({"a": good}, "a") == bytes(3)
    for wrong in ({}, {"a": good.astype(np.int64)}, {"a": good.reshape(1, 3)}, {"a": np.uint8(3)}):
        with pytest.raises(SecaggError, match="a is"):
            bytes_in(wrong, "a")
    with pytest.raises(SecaggError, match="shares has 3 bytes, it must have 2 rows of 2"):
        rows_in(bytes(3), 2, 2, "shares")


def test_the_evidence_of_a_sum_is_read_back_from_its_arrays():
    fleet = Fleet(terms(6), numbers(6), {NAMES[4]: STEPS[2]})
    found = fleet.run()
    arrays = evidence_arrays(found.roster, found.evidence)
    assert {name: len(array) for name, array in arrays.items()} == {
        "control.values.vectors": 5 * 12, "control.values.signatures": 5 * 64,
        "control.values.seeds": 5 * 32, "control.values.lost": 32,
    }  # fmt: skip
    evidence = read_evidence(found.roster, NAMES[:6], found.survivors, arrays)
    assert evidence == found.evidence
    total = unmasked_sum(found.roster, NAMES[:6], evidence.vectors, evidence.secrets)
    assert np.array_equal(total, found.words)
    with pytest.raises(SecaggError, match="seeds has 160 bytes, it must have 6 rows of 32"):
        read_evidence(found.roster, NAMES[:6], NAMES[:6], arrays)
