"""The verdict on an answer is final.

A device whose answer has a verdict delays no other device. It gets the same verdict each time it repeats the
answer.
"""

import numpy as np

from protofleet.coordinator.round.policy import Policy
from tests.hostile.device import Answer, honest
from tests.hostile.federation import Federation

# There is no deadline for stragglers: it would end the open phases, and would make a refused answer a late one.
PATIENT = Policy(quorum=2, gather=3, patience_seconds=300.0, settle_seconds=1.0, straggler_factor=0.0)


def refused(task):
    """Give an answer that is refused.

    The device stays present, and answers each task at once.
    """
    return Answer({"weights.none": np.zeros(3, np.float32)}) if task.phase == "train" else honest(task)


def test_a_device_whose_answers_are_refused_delays_no_phase(tmp_path):
    with Federation(tmp_path, "one", "two", "wrong", policy=PATIENT, rounds=3) as f:
        coordinator = f.coordinator()
        one, wrong = f.raw("one"), f.raw("wrong", refused, again=0.5)
        f.raw("two")
        assert f.wait_for_end(coordinator, 120) == 0, f.last_words()
        assert [line["participants"] for line in f.rounds()[:3]] == [["one", "two"]] * 3
        assert max(line["seconds"] for line in f.rounds()) < 60.0 < PATIENT.patience_seconds
        assert {v for v, _ in one.verdicts()} == {"accepted"}
        assert [v for v, _ in wrong.verdicts()].count("refused") == 3
        told = [(h.kind, h.header["round"]) for h in wrong.heard if h.header["phase"] == "train"]
        judged = {number: told.index(("receipt", number)) for kind, number in told if kind == "receipt"}
        asked_again = [told[at] for number, at in judged.items() if ("task", number) in told[at:]]
        assert len(judged) == 3 and not asked_again, (
            "before its verdict, a device may get the task again after a hello"
        )


def test_an_answer_that_is_sent_again_after_its_round_is_accepted_again(tmp_path):
    with Federation(tmp_path, "one", "two", policy=Policy(quorum=2), rounds=3) as f:
        coordinator = f.coordinator()
        one = f.raw("one")
        hold = []

        def waits(task):
            """Wait in round 2 until the device has repeated its answer of round 1."""
            if task.round == 2 and task.phase == "train" and not hold:
                hold.append(one.wait_until(lambda: any(p[0] == 1 for p in one.answered), "round 1"))
                place = next(place for place in one.answered if place[0] == 1)
                before = len(one.verdicts())
                one.answer(place, one.answered[place])
                one.wait_until(lambda: len(one.verdicts()) > before, "a receipt")
            return honest(task)

        f.raw("two", waits)
        assert f.wait_for_end(coordinator, 120) == 0, f.last_words()
        assert hold and {v for v, _ in one.verdicts()} == {"accepted"}
        assert f.events("answered") and not f.events("dropped")
