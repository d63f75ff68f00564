import time

import numpy as np
import pytest

from protofleet.protocol.secagg.faults import SecaggError
from protofleet.protocol.secagg.packing import pack, packed_bytes, unpack


def plainly_packed(words, bits):
    """Return the words as one number, written with its lowest byte first."""
    whole = sum(int(word) << (bits * place) for place, word in enumerate(words))
    return whole.to_bytes((len(words) * bits + 7) // 8, "little")


@pytest.mark.parametrize("bits", range(8, 33))
def test_packed_words_are_the_bytes_of_one_number_and_are_unpacked_unchanged(bits):
    dice = np.random.default_rng(bits)
    for length in (1, 7, 8, 9, 37):
        words = dice.integers(0, 2**bits, length, dtype=np.uint64).astype(np.uint32)
        words[-1] = 2**bits - 1
        data = pack(words, bits)
        assert data == plainly_packed(words, bits)
        assert len(data) == packed_bytes(length, bits)
        assert np.array_equal(unpack(data, length, bits), words)


def test_bytes_of_a_wrong_length_and_unused_bits_are_refused():
    data = pack(np.arange(3, dtype=np.uint32), 13)
    for wrong in (data[:-1], data + b"\x00", b""):
        with pytest.raises(SecaggError, match="wrong length for 3 words of 13 bits; it must be 5"):
            unpack(wrong, 3, 13)
    with pytest.raises(SecaggError, match="unused bits after 3 words"):
        unpack(data[:-1] + bytes([data[-1] | 0x80]), 3, 13)


@pytest.mark.parametrize("bits", [16, 20, 24, 32])
def test_a_million_words_are_packed_and_unpacked_in_a_second_of_processor_time(bits):
    words = np.random.default_rng(0).integers(0, 2**bits, 10**6, dtype=np.uint64).astype(np.uint32)
    begun = time.process_time()
    assert np.array_equal(unpack(pack(words, bits), 10**6, bits), words)
    assert time.process_time() - begun < 1
