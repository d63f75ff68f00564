"""Tests of wrong arrays in a broadcast: a device refuses them by name and accepts the right ones afterwards.

They cover every method. Earlier tests simulated hostile devices but never a hostile coordinator, so they did not see
that a wrong broadcast ended a device.
"""

import numpy as np
import pytest
import torch

from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.edge_client.trainer.job import LocalJob
from protofleet.lab.contract.halves import Halves
from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.catalog import names
from protofleet.methods.parts.state import snapshot
from protofleet.protocol.wire.names import EVALUATE
from protofleet.protocol.wire.reasons import DisconnectReason
from tests.support.few_methods import of_each_shape, with_own_arrays
from tests.support.small_federation import plan, shard

ROUNDS = 2
DEVICE = "device-0"
# Broadcasts that a method's own server half may send: without anchors that devices have, or for more devices.
ALLOWED = {
    # Without the table, no answer has been used yet. It has any number of rows.
    "feddyn": {("missing", "counted"), ("longer", "counted")},
    "scaffold": {("missing", "counted"), ("longer", "counted")},
    "fed3r": {("missing", "head")},  # Without it, the payload is empty, as in every task before the head.
    "fedlsa": {("missing", "anchors")},
    "fedhp": {("missing", "anchors")},
    "fedgram": {("missing", "head")},
    "fedpft": {("missing", "head")},
    "ghofl": {("missing", "head")},
    "adcol": {("longer", "discriminator.6.weight")},
    "fedpall": {("longer", "amplifier.6.weight")},
}


def missing(arrays, name):
    return {other: value for other, value in arrays.items() if other != name}


def shaped(change):
    return lambda arrays, name: {**arrays, name: change(arrays[name])}


def longer(value):
    """Return the value with one more row; in a table this is a class that does not exist."""
    return torch.cat([value, value[-1:]]) if value.ndim else torch.stack([value, value])


def narrower(value):
    return value[..., :-1] if value.ndim else value.reshape(1, 1)


def of_another_dtype(value):
    return value.double() if value.dtype != torch.float64 else value.float()


def not_finite(value):
    found = value.clone()
    found.view(-1)[-1] = float("nan")
    return found


FAULTS = {
    "missing": missing,
    "longer": shaped(longer),
    "narrower": shaped(narrower),
    "dtype": shaped(of_another_dtype),
    "not finite": shaped(not_finite),
}


def wrong(arrays):
    """Yield (fault, name, arrays) for each fault of each array, and for an array that no method declares."""
    for name, value in arrays.items():
        for fault, spoil in FAULTS.items():
            if fault != "not finite" or value.is_floating_point():
                yield fault, name, spoil(dict(arrays), name)
    yield "unknown", "surplus", {**arrays, "surplus": torch.zeros(1)}


def questions(halves):
    """Yield each ask of some rounds with the device's state before it, and then the last evaluation."""
    for number in range(1, ROUNDS + 1):
        halves.begin(number)
        for ask, before in asked(halves, number):
            yield number, ask, before
    last = Ask(EVALUATE, halves.server.payload())
    yield ROUNDS + 1, last, snapshot(halves.clients[DEVICE].state())


def asked(halves, number):
    before = snapshot(halves.clients[DEVICE].state())
    for ask, _ in halves.round(number):
        yield Ask(ask.phase, snapshot(ask.payload), ask.wants), before
        before = snapshot(halves.clients[DEVICE].state())


def job_of(made):
    data = shard(0)
    half = made.client_half(data.train, DEVICE, validation=data.validation)
    return LocalJob(half, data, made.variant.reports)


def run(job, ask, number, arrays, before):
    job.restore(to_numpy(before))
    return job.run(ask.phase, number, to_numpy(arrays))


@pytest.mark.parametrize("method", of_each_shape(with_own_arrays(names())))
def test_a_device_refuses_each_wrong_array_by_its_name_and_then_accepts_right_ones(method):
    made = plan(method, ROUNDS, epochs=1)
    device, taken = job_of(made), []
    for number, ask, before in list(questions(Halves(made))):
        for fault, name, arrays in wrong(dict(ask.payload)):
            try:
                run(device, ask, number, arrays, before)
            except TrainerDiedError as error:
                assert error.why is DisconnectReason.WRONG_ARRAYS and str(error).isprintable()
                # If two arrays disagree in a length, the error may name either of them.
                suspects = arrays if fault in ("longer", "narrower") else [name]
                assert any(suspect in str(error) for suspect in suspects), (name, fault, str(error))
            else:
                taken.append((fault, name))
        expected, found = (run(job, ask, number, ask.payload, before)[0] for job in (job_of(made), device))
        assert expected.keys() == found.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in found)
    assert set(taken) <= ALLOWED.get(method, set())
