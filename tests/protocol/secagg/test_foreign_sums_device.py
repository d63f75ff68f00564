"""Tests of a foreign client, which was written only from docs/protocol.md: its steps, and tasks that it refuses."""

import hashlib
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.protocol.secagg.field import Field
from protofleet.protocol.secagg.masks import digest
from protofleet.protocol.secagg.terms import Terms
from protofleet.protocol.wire.arrays import encode
from tests.over_broker import smallest_sums_device as foreign

SETTINGS = {"bits": 24, "limit": 8.0, "least": 3, "holders": 3, "strict_cohort": True}
FRACTION = 17  # With 4 devices, a limit of 8 and 24 bits, the sum fits.
WEIGHTS = {"weights.a": np.arange(6, dtype=np.float32)}
MOST = 20


@pytest.fixture
def device(tmp_path):
    identity = Ed25519PrivateKey.generate()
    keys = foreign.device.Keys(tmp_path, "lab", "board-7", identity, None, None, None, [b"", b"", b""], 0)
    made = foreign.SumsDevice(keys, tmp_path / "state", 3, 10)
    made.settings, made.method, made.width = SETTINGS, foreign.METHODS["fedavg"], 4
    return made


def terms(**changes):
    body = hashlib.sha256(b"".join(encode(WEIGHTS))).digest()
    base = digest("base", body, struct.pack("<Q", changes.pop("most", MOST)))
    field = Field(4, changes.pop("limit", 8.0), changes.pop("fraction", FRACTION), 24)
    given = {"round": 2, "attempt": bytes(16), "stage": "values", "base": base, "length": 6, "least": 3}
    return Terms("lab", "spring", field=field, **{**given, **changes}).encode()


def update_of(device, phase, arrays, number=2):
    """Return the arrays of the device's update; all arrays but the weights are bytes, or the number `most`."""
    sent = {name: foreign.device.Array("uint8", [len(data)], data) for name, data in arrays.items()}
    if phase == "train":
        sent["weights.a"] = foreign.device.Array("float32", [6], WEIGHTS["weights.a"].tolist())
        sent["control.most"] = foreign.device.Array("int64", [1], (MOST,))
    header = foreign.device.Header(
        1, 1, 1, "task", "lab", "spring", 1, "coordinator", 1, 1, "board-7", number, phase, b""
    )
    device.task = header, {}
    return device.coded({"weights.a": foreign.device.Array("float32", [1], [1.0])}, sent)


def begun(device, number=2, **changes):
    return update_of(device, "train", {"control.values.terms": terms(round=number, **changes)}, number)


def test_a_foreign_client_sends_keys_for_the_terms_of_the_plan(device):
    (found,) = begun(device).items()
    assert (found[0], len(found[1].numbers)) == ("control.values.keys", 160)


@pytest.mark.parametrize(
    "changes",
    [
        {"limit": 4.0, "fraction": 18},
        {"fraction": FRACTION - 1},
        {"most": MOST + 1},
        {"length": 7},
        {"least": 4},
        {"apart": 3},
        {"stage": "presence"},
    ],
    ids=str,
)
def test_a_foreign_client_refuses_terms_that_differ_from_plan_or_task(device, changes):
    with pytest.raises(foreign.Refused, match="the terms of the stage values differ"):
        begun(device, **changes)


def test_a_foreign_client_refuses_a_repeated_nonce_and_an_older_round(device):
    begun(device)
    with pytest.raises(foreign.Refused, match="the nonce has been seen"):
        begun(device)
    begun(device, 3)
    with pytest.raises(foreign.Refused, match="round 2 is older than 3"):
        begun(device, attempt=b"\1" * 16)


def test_a_later_attempt_has_the_same_vector_and_other_keys(device):
    first, numbers = begun(device), device.book["numbers"]
    second = begun(device, attempt=b"\1" * 16)
    assert device.book["numbers"] == numbers and first != second


def test_a_foreign_client_joins_no_other_sum_of_a_round_after_it_unmasked_one(device):
    begun(device)
    device.book["spent"].append("values")
    with pytest.raises(foreign.Refused, match="the stage values of this round is over"):
        begun(device, attempt=b"\1" * 16)
    assert begun(device, 3)


def test_a_foreign_client_that_refused_a_step_refuses_the_rest_of_the_attempt(device):
    begun(device)
    task = {"control.attempt": bytes(16), "control.values.first": b"\x0f"}
    other = "the task is of another attempt"
    with pytest.raises(foreign.Refused, match=other):
        update_of(device, "train.masked", {**task, "control.attempt": b"\1" * 16})
    with pytest.raises(LookupError, match="rosters"):
        update_of(device, "train.masked", task)  # It has not answered the step `shares`.
    with pytest.raises(foreign.Refused, match=other):
        update_of(device, "train.shares", task)


def test_a_foreign_client_refuses_a_second_task_of_a_step(device):
    begun(device)
    device.book["steps"].append("shares")
    with pytest.raises(foreign.Refused, match="another task of the step shares"):
        update_of(device, "train.shares", {"control.attempt": bytes(16)})


def test_a_foreign_client_sends_no_array_in_an_evaluation_and_no_unmasked_update(device):
    begun(device)
    assert update_of(device, "evaluate", {}) == {}
    with pytest.raises(LookupError, match=r"control\.values\.terms"):
        update_of(device, "train", {}, 3)
