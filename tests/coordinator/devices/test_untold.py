from protofleet.coordinator.devices.untold import Untold

BOTH = ("one", "two")


def test_who_has_heard_the_question_is_silent_and_who_has_not_is_named_apart():
    untold = Untold()
    untold.said("one", connected=True)
    untold.said("two", connected=True)
    assert untold.words(BOTH, connected=True) == "; silent: one, two"
    untold.denied(["two"])
    assert (
        untold.words(BOTH, connected=True) == "; silent: one; the broker did not take the question for: two"
    )


def test_what_is_said_without_a_connection_is_no_question_until_it_is_said_again():
    untold = Untold()
    untold.said("one", connected=False)
    assert "silent" not in untold.words(["one"], connected=True)
    untold.said("one", connected=True)
    assert untold.words(["one"], connected=True) == "; silent: one"


def test_without_a_connection_nobody_is_silent_and_without_anybody_missing_there_are_no_words():
    assert Untold().words(BOTH, connected=False) == "; there is no connection to the broker"
    assert Untold().words((), connected=False) == Untold().words((), connected=True) == ""
