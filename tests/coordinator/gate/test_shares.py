"""Some offers of answers must wait when the room for answers is short."""

from hypothesis import given
from hypothesis import strategies as st

from protofleet.coordinator.gate.shares import Offer, offers_to_drop

OFFERS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.builds(Offer, st.integers(1, 100), st.booleans()),
    max_size=6,
)


def test_silent_devices_lose_their_offers_first_and_then_the_largest_offers():
    offers = {"a": Offer(50, False), "b": Offer(10, True), "c": Offer(60, False), "d": Offer(5, False)}
    assert offers_to_drop(8, 5, 20, offers) == ["b"]
    assert offers_to_drop(8, 15, 20, offers) == ["b", "c"]
    assert offers_to_drop(8, 100, 20, offers) == ["b", "c", "a"]


def test_no_offer_is_dropped_if_all_offers_together_are_too_small():
    assert offers_to_drop(8, 200, 20, {"a": Offer(50, False), "b": Offer(10, True)}) == []


def test_the_first_of_two_equal_offers_stays_unless_its_device_is_silent():
    assert offers_to_drop(50, 10, 20, {"a": Offer(50, False)}) == []
    assert offers_to_drop(50, 10, 20, {"a": Offer(50, True)}) == ["a"]


@given(OFFERS, st.integers(6, 1000))
def test_an_offer_within_its_share_always_gets_its_room(offers, room):
    """The room is shared by all devices and one more, and the other offers may have reserved all of it."""
    share = room // (len(offers) + 1)
    taken = {}
    for device, offer in offers.items():
        if sum(o.size for o in taken.values()) + offer.size <= room:
            taken[device] = offer
    lacking = sum(o.size for o in taken.values()) + share - room
    if lacking > 0:
        gone = offers_to_drop(share, lacking, share, taken)
        assert sum(taken[d].size for d in gone) >= lacking
        assert all(taken[d].silent or taken[d].size > share for d in gone)
