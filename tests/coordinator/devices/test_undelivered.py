from protofleet.coordinator.devices.undelivered import Undelivered

BOTH = ("one", "two")


def test_devices_that_got_no_task_are_named_apart_from_devices_without_an_answer():
    undelivered = Undelivered()
    undelivered.sent("one", connected=True)
    undelivered.sent("two", connected=True)
    assert undelivered.describe(BOTH, connected=True) == "; no answer from: one, two"
    undelivered.denied(["two"])
    assert (
        undelivered.describe(BOTH, connected=True)
        == "; no answer from: one; the broker did not take the question for: two"
    )


def test_a_task_that_was_sent_without_a_connection_counts_when_it_is_sent_again():
    undelivered = Undelivered()
    undelivered.sent("one", connected=False)
    assert "no answer" not in undelivered.describe(["one"], connected=True)
    undelivered.sent("one", connected=True)
    assert undelivered.describe(["one"], connected=True) == "; no answer from: one"


def test_without_a_connection_no_device_is_named_and_without_missing_devices_the_text_is_empty():
    assert Undelivered().describe(BOTH, connected=False) == "; there is no connection to the broker"
    assert Undelivered().describe((), connected=False) == Undelivered().describe((), connected=True) == ""
