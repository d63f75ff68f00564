"""A manifest can become an object when the broker's packets have become too small for it."""

import pytest

from protofleet.coordinator.devices.small_packets import LASTS_SECONDS, SmallPackets

CAN = {"one": frozenset({"manifest"}), "old": frozenset()}


@pytest.mark.parametrize(
    ("present", "can", "quorum", "goes_on"),
    [
        ({"one", "old"}, CAN, 1, True),
        ({"old"}, CAN, 1, True),  # "one" can be heard only when the broker accepts a connection
        ({"one", "old"}, CAN, 2, False),
        ({"old"}, {"old": frozenset()}, 1, False),
        ({"earlier", "old"}, {"old": frozenset()}, 1, True),  # it came before this coordinator
    ],
)
def test_a_limit_that_lasts_is_gone_on_with_where_enough_others_have_said_that_they_can(
    present, can, quorum, goes_on
):
    small_packets = SmallPackets(quorum)
    assert not small_packets.manifests_may_be_objects(present, can, 0.0)
    small_packets.broker_refused(0.0)
    assert not small_packets.manifests_may_be_objects(present, can, LASTS_SECONDS - 1.0), (
        "one CONNACK may be a slip"
    )
    assert small_packets.manifests_may_be_objects(present, can, LASTS_SECONDS) is goes_on
    small_packets.broker_accepted()
    assert not small_packets.manifests_may_be_objects(present, can, LASTS_SECONDS)


def test_where_all_can_it_may_be_one_at_once():
    assert SmallPackets(2).manifests_may_be_objects({"one"}, CAN, 0.0)
