"""Tests that the meter counts all bytes that cross the link, and that its parts add up to the packets."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.link.meter import DOWN, UP, Meter
from protofleet.protocol.transport.base import packet_bytes

TENSORS = st.dictionaries(st.sampled_from(["weights", "counts", "control"]), st.integers(0, 1000))
CROSSINGS = st.lists(
    st.tuples(
        st.sampled_from([UP, DOWN]), st.integers(3000, 9000), st.integers(0, 3000), TENSORS, st.booleans()
    )
)


def metered(crossings):
    meter = Meter()
    for crossing in crossings:
        meter.count_packet(*crossing)
    return meter


@given(CROSSINGS)
def test_the_bytes_of_all_kinds_add_up_to_the_bytes_of_the_packets(crossings):
    meter = metered(crossings)
    for direction in (UP, DOWN):
        mine = [c for c in crossings if c[0] == direction]
        assert sum(n for (d, _), n in meter.wire.items() if d == direction) == sum(c[1] for c in mine)
        assert meter.frames[direction] == sum(c[2] for c in mine)
        for kind in ("weights", "counts"):
            assert meter.wire[direction, kind] == sum(c[3].get(kind, 0) for c in mine)
            assert meter.payload[direction, kind] == sum(c[3].get(kind, 0) for c in mine if c[4])
        assert (direction, "control") not in meter.payload


@given(CROSSINGS, CROSSINGS)
def test_the_difference_from_a_snapshot_is_the_traffic_since_the_snapshot(before, between):
    meter = metered(before)
    earlier = meter.snapshot()
    for crossing in between:
        meter.count_packet(*crossing)
    meter.count_message(UP, "hello", "accepted")
    found, alone = meter.since(earlier), metered(between)
    assert (found.payload, found.wire, found.frames) == (+alone.payload, +alone.wire, +alone.frames)
    assert found.messages == {(UP, "hello", "accepted"): 1}


def publish(topic, frame):
    """Return the bytes of an MQTT 5 PUBLISH packet at QoS 1, built by hand."""
    name = topic.encode()
    rest = struct.pack("!H", len(name)) + name + b"\x00\x01" + b"\x00" + frame
    length, left = b"", len(rest)
    while left > 127:
        length, left = length + bytes([left & 127 | 128]), left >> 7
    return b"\x32" + length + bytes([left]) + rest


EDGES = [0, 128, 16_384, 2_097_152]  # At these sizes the length field of the packet gets one byte longer.


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.sampled_from(EDGES), st.integers(-2, 2)
)
def test_the_computed_size_of_a_packet_is_exact(topic, edge, off):
    frame = max(0, edge + off - 5 - len(topic.encode()))
    assert packet_bytes(topic, frame) == len(publish(topic, bytes(frame)))
