"""Tests of timers: only the last time that was set for a party counts."""

from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.transport.timers import Timers

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abcd"), st.floats(0, 20)),
        st.tuples(st.just("forget"), st.sampled_from("abcd"), st.none()),
        st.tuples(st.just("take"), st.none(), st.floats(0, 3)),
    )
)


@given(STEPS)
def test_each_party_is_taken_once_when_its_last_timer_is_due(steps):
    timers, plain, now = Timers[str](), {}, 0.0
    for what, who, value in steps:
        match what:
            case "set":
                timers.set(who, value)
                plain[who] = value
            case "forget":
                timers.forget(who)
                plain.pop(who, None)
            case "take":
                now += value
                due = {name for name, at in plain.items() if at <= now}
                assert sorted(timers.take_due(now)) == sorted(due)
                plain = {name: at for name, at in plain.items() if name not in due}
        assert timers.next_at <= min(plain.values(), default=float("inf"))
