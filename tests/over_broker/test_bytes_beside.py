"""The bytes that a device needs for a round of FedProto in addition to its arrays, by kind of message.

The test counts them on the wire of a real broker.
"""

import contextlib
import statistics
from collections import Counter, defaultdict

import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import packet_bytes
from tests.conftest import missing
from tests.hostile.federation import CLASSES, Federation

pytestmark = [pytest.mark.broker, pytest.mark.slow]
WIDTH = 288  # Three prototypes of this width, with labels and counts, make an update of 3.5 kB.
ARRAYS = CLASSES * (4 * WIDTH + 2 * 8)
ROUNDS = 4
KINDS = ("task", "want", "update", "receipt")
NEW, OLD = ("board-1", "board-2"), "board-3"
TOGETHER = Policy(quorum=3, cohort=3, patience_seconds=90.0, settle_seconds=0.2)
LISTS_NO_FORM = "import protofleet.protocol.wire.forms as forms; forms.DEVICE_FORMS = ()"


@pytest.fixture(scope="module")
def cost(tmp_path_factory):
    """Return the bytes of the packets of a round by (device, kind of message), without those of arrays.

    A loaded machine may repeat a message in one of the rounds, so the result is the median of all rounds.
    """
    found = defaultdict(Counter)
    with contextlib.ExitStack() as ends:
        try:
            made = Federation(
                tmp_path_factory.mktemp("f"), *NEW, OLD, taken_over=True, policy=TOGETHER, rounds=ROUNDS,
                name="spring", network=Network("mlp", embedding_size=WIDTH), method={"name": "fedproto"},
                codec="off",
            )  # fmt: skip
        except BrokerError as error:
            missing(error)
        f = ends.enter_context(made)
        coordinator = f.coordinator()
        ours = [*(f.device(name) for name in NEW), f.device(OLD, planted=LISTS_NO_FORM)]
        assert f.wait_for_end(coordinator, 240.0) == 0, f.last_words()
        assert [f.wait_for_end(one) for one in ours] == [0, 0, 0]
        assert [line["payload"]["up"] for line in f.rounds()][:ROUNDS] == [
            {"counts": 72, "labels": 72, "prototypes": 3 * 4 * CLASSES * WIDTH}
        ] * ROUNDS
        for frame in f.proxy.seen:
            if frame.party in (*NEW, OLD) and frame.kind in KINDS:
                size = packet_bytes(frame.topic, len(frame.data))
                found[frame.party, frame.kind][frame.header["round"]] += size
    for name in (*NEW, OLD):
        found[name, "update"].subtract(dict.fromkeys(range(1, ROUNDS + 1), ARRAYS))
    return {key: typical(sizes) for key, sizes in found.items()}


def typical(sizes):
    """Return the bytes of a typical round. A `want` names no round, so its bytes are shared by all rounds."""
    if not sizes.keys() - {0}:
        return sizes[0] / (ROUNDS + 1)  # The evaluation is one more round.
    return statistics.median(sizes[number] for number in range(1, ROUNDS + 2))


def test_a_device_needs_at_most_1000_bytes_a_round_in_addition_to_its_arrays(cost):
    assert [sum(cost.get((name, kind), 0) for kind in KINDS) <= 1000 for name in NEW] == [True, True], cost


def test_an_update_of_3_5_kilobytes_needs_at_most_15_percent_more_than_its_arrays(cost):
    for name in NEW:
        beside = cost.get((name, "want"), 0) + cost[name, "update"]
        assert (ARRAYS + beside) / ARRAYS <= 1.15, cost


def test_a_device_that_lists_no_form_gets_manifests_and_sends_wants(cost):
    """This device needs as many bytes as before, and the other devices need fewer."""
    assert cost[OLD, "want"] > 200 and cost[OLD, "task"] > cost[NEW[0], "task"] + 40
    assert not [cost[name, "want"] for name in NEW if (name, "want") in cost]
