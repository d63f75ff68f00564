"""Tests of the setting for larger blocks: there are fewer blocks, as far as the broker accepts their size."""

import pytest

from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.address import LARGEST_BLOCK, BrokerAddress
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.blocks import DEFAULT_BLOCK
from protofleet.protocol.wire.messages import Task
from protofleet.protocol.wire.names import COORDINATOR
from tests.protocol.ends import Ends, weights

PACKET = 1 << 21
DEVICES = ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("wanted", "packet", "block"),
    [
        (BrokerAddress().block_bytes, PACKET, DEFAULT_BLOCK),
        (LARGEST_BLOCK, PACKET, LARGEST_BLOCK),
        (LARGEST_BLOCK, 200_000, LARGEST_BLOCK // 2),
        (LARGEST_BLOCK, 40_000, 32 * 1024),
    ],
)
def test_the_block_size_is_the_setting_or_the_largest_that_the_broker_accepts(
    tmp_path, wanted, packet, block
):
    link = Ends(tmp_path).links["a"]
    link.most_block = wanted
    link.adapt(packet)
    assert link.block == block


def asked(ends, size, cohort):
    """Return the devices that received a broadcast of one block, and the number of wants for it."""
    coordinator = ends.coordinator
    coordinator.most_block = LARGEST_BLOCK
    coordinator.adapt(PACKET)
    coordinator.party.device_forms.update({device: frozenset({forms.INLINE}) for device in DEVICES})
    store = ObjectStore(ends.folder / "broadcasts", durable=False)
    offer = coordinator.tasks.offer(store.put(weights(size), coordinator.block), store, list(cohort), set())
    for device in cohort:
        coordinator.tasks.send(device, Task(1, "train", offer), holds=False)
    coordinator.tasks.flush(ends.clock.now)
    ends.run()
    assert all(ends.heard[device][-1].object == offer.object for device in cohort)
    came = {d for d in DEVICES for kind, _ in ends.results(d, "down") if kind == "block"}
    heard = came | {d for d in DEVICES if ends.links[d].has_early_block}
    wants = sum(n for (kind, _), n in ends.results(COORDINATOR, "up").items() if kind == "want")
    return heard, wants


def test_a_model_in_one_large_block_is_sent_without_a_want_to_most_devices(tmp_path):
    assert asked(Ends(tmp_path, DEVICES), 50_000, DEVICES[:3]) == (set(DEVICES), 0)


def test_a_model_in_one_large_block_is_sent_on_request_to_a_few_of_many_devices(tmp_path):
    assert asked(Ends(tmp_path, DEVICES), 50_000, DEVICES[:2]) == (set(DEVICES[:2]), 2)


def test_a_model_in_one_default_block_is_sent_without_a_want_to_a_few_devices(tmp_path):
    assert asked(Ends(tmp_path, DEVICES), 5_000, DEVICES[:2]) == (set(DEVICES), 0)
