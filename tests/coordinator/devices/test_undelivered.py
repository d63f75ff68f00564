from protofleet.coordinator.devices.undelivered import Undelivered

BOTH = ("one", "two")


def test_who_has_heard_the_question_has_not_answered_and_who_has_not_is_named_apart():
    undelivered = Undelivered()
    undelivered.sent("one", connected=True)
    undelivered.sent("two", connected=True)
    assert undelivered.describe(BOTH, connected=True) == "; no answer from: one, two"
    undelivered.denied(["two"])
    assert (
        undelivered.describe(BOTH, connected=True)
        == "; no answer from: one; the broker did not take the question for: two"
    )


def test_a_question_sent_without_a_connection_counts_once_it_is_sent_again():
    undelivered = Undelivered()
    undelivered.sent("one", connected=False)
    assert "no answer" not in undelivered.describe(["one"], connected=True)
    undelivered.sent("one", connected=True)
    assert undelivered.describe(["one"], connected=True) == "; no answer from: one"


def test_without_a_connection_nobody_is_blamed_and_without_anybody_missing_there_are_no_words():
    assert Undelivered().describe(BOTH, connected=False) == "; there is no connection to the broker"
    assert Undelivered().describe((), connected=False) == Undelivered().describe((), connected=True) == ""
