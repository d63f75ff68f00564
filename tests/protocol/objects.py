"""An object of eight blocks, and helpers for tests that use it."""

from __future__ import annotations

import pytest

from protofleet.protocol.wire.arrays import encode
from protofleet.protocol.wire.reasons import Rejected
from tests.protocol.ends import weights

BLOCK = 16_384
ARRAYS = weights(30_000)  # 120 kB; the last block is shorter.
BODY = b"".join(encode(ARRAYS))


def block(manifest, index, body=BODY):
    return memoryview(body)[index * manifest.block : (index + 1) * manifest.block]


def fill(partial, indices):
    return [partial.write(i, block(partial.manifest, i)) for i in indices]


def fault_of(call):
    with pytest.raises(Rejected) as fault:
        call()
    return fault.value.reason
