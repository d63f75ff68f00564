"""A manifest can become an object when the broker's packets have become too small for it."""

import pytest

from protofleet.coordinator.devices.small_packets import LASTS_SECONDS, SmallPackets

CAN = {"one": frozenset({"manifest"}), "old": frozenset()}


@pytest.mark.parametrize(
    ("present", "can", "quorum", "goes_on"),
    [
        ({"one", "old"}, CAN, 1, True),
        ({"old"}, CAN, 1, True),  # "one" can send a hello only when the broker accepts a connection
        ({"one", "old"}, CAN, 2, False),
        ({"old"}, {"old": frozenset()}, 1, False),
        (
            {"earlier", "old"},
            {"old": frozenset()},
            1,
            True,
        ),  # this coordinator has seen no hello of "earlier"
    ],
)
def test_manifests_may_be_objects_if_the_limit_lasts_and_a_quorum_supports_the_form(
    present, can, quorum, goes_on
):
    small_packets = SmallPackets(quorum)
    assert not small_packets.manifests_may_be_objects(present, can, 0.0)
    small_packets.broker_refused(0.0)
    assert not small_packets.manifests_may_be_objects(present, can, LASTS_SECONDS - 1.0), (
        "one CONNACK may be an exception"
    )
    assert small_packets.manifests_may_be_objects(present, can, LASTS_SECONDS) is goes_on
    small_packets.broker_accepted()
    assert not small_packets.manifests_may_be_objects(present, can, LASTS_SECONDS)


def test_manifests_may_be_objects_at_once_if_all_present_devices_support_the_form():
    assert SmallPackets(2).manifests_may_be_objects({"one"}, CAN, 0.0)
