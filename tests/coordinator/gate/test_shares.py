"""Some offers of answers must wait when the room for answers is short."""

from hypothesis import given
from hypothesis import strategies as st

from protofleet.coordinator.gate.shares import Offer, offers_to_drop

OFFERS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.builds(Offer, st.integers(1, 100), st.booleans()),
    max_size=6,
)


def test_who_sends_nothing_yields_first_and_then_who_offers_most():
    offers = {"a": Offer(50, False), "b": Offer(10, True), "c": Offer(60, False), "d": Offer(5, False)}
    assert offers_to_drop(8, 5, 20, offers) == ["b"]
    assert offers_to_drop(8, 15, 20, offers) == ["b", "c"]
    assert offers_to_drop(8, 100, 20, offers) == ["b", "c", "a"]


def test_nobody_yields_where_that_would_not_do():
    assert offers_to_drop(8, 200, 20, {"a": Offer(50, False), "b": Offer(10, True)}) == []


def test_of_two_that_want_the_same_the_first_keeps_it():
    assert offers_to_drop(50, 10, 20, {"a": Offer(50, False)}) == []
    assert offers_to_drop(50, 10, 20, {"a": Offer(50, True)}) == ["a"]


@given(OFFERS, st.integers(6, 1000))
def test_whoever_asks_for_no_more_than_its_share_has_it_whatever_others_have_promised(offers, room):
    """`room` is enough for all of them and one more; the others have reserved all of it."""
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
