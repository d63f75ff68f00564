"""The deadline for stragglers is stored and equals the deadline that is computed again from all answers."""

from hypothesis import given
from hypothesis import strategies as st

from protofleet.coordinator.round.stragglers import StragglerDeadline

DEVICES = tuple("abcdefgh")


def computed_again(asked_at, took, missing, cohort, quorum, factor):
    enough = max(quorum, cohort // 2 + 1, 2)
    if len(took) < enough:
        return float("inf")
    return (
        max((asked_at[device] for device in missing), default=0.0)
        + factor * sorted(took.values())[enough - 1]
    )


WHAT = st.sampled_from(["answers", "is refused", "is looked at"])
deeds = st.lists(st.tuples(WHAT, st.sampled_from(DEVICES), st.floats(0.1, 9.0)), max_size=20)


@given(
    first=st.sets(st.sampled_from(DEVICES)), again=st.floats(0.0, 5.0), deeds=deeds, quorum=st.integers(1, 5)
)
def test_the_stored_deadline_equals_the_deadline_computed_from_all_answers(first, again, deeds, quorum):
    deadline, question, now = StragglerDeadline(2.0), (1, "train", b""), 10.0 + again
    asked_at = {device: 10.0 if device in first else now for device in DEVICES}
    deadline.asked(question, sorted(first), (), 10.0)
    deadline.asked(question, DEVICES, (), now)
    missing, took = set(DEVICES), {}
    for deed, device, seconds in deeds:
        now += seconds
        if deed == "answers" and device in missing:
            missing.discard(device)
            took[device] = now - asked_at[device]
            deadline.answered(device, now)
        elif deed == "is refused" and device not in took:
            missing.discard(device)
        elif deed == "is looked at":
            expected = computed_again(asked_at, took, missing, len(took) + len(missing), quorum, 2.0)
            assert deadline.at(took, missing, len(took) + len(missing), quorum) == max(expected, 10.0 + again)
