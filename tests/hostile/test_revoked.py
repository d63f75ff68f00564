"""No coordinator waits for a revoked device, even after a restart, and a new message of it is reported."""

import shutil
import signal

from protofleet.coordinator.round.policy import Policy
from protofleet.federation.enrol.lifecycle import revoke
from protofleet.protocol.security.enrolment import CURRENT
from tests.hostile.federation import Federation

AN_HOUR = Policy(quorum=1, gather=2, patience_seconds=3600.0, straggler_factor=0.0)
ALONE = Policy(quorum=1, gather=1, settle_seconds=0.2, patience_seconds=600)


def test_a_phase_does_not_wait_for_a_device_that_is_revoked_while_it_works(tmp_path):
    with Federation(tmp_path, "one", "two", policy=AN_HOUR, rounds=1) as f:
        first = f.coordinator()
        f.raw("one"), f.raw("two", lambda task: None)
        f.wait_until(lambda: f.events("answered"), "the answer of one")
        revoke(f.fleet.authority(), "two", "stolen")
        f.wait_until(lambda: "two is not enrolled any more" in f.log_of(first), "word of the revocation")
        first.say(signal.SIGKILL)
        f.wait_for_end(first)
        second = f.coordinator()
        assert f.wait_for_end(second) == 0, f.last_words()
        for process in (first, second):
            assert (
                f.log_of(process).count("two is not enrolled any more: there is no record of 'two' in ") <= 1
            )
        assert [line["participants"] for line in f.rounds()] == [["one"], ["one"]]


def unknown_senders(f):
    return f.metrics().get('protofleet_rejected_total{reason="unknown_sender"}', 0.0)


def test_retained_messages_of_a_revoked_device_are_not_counted_and_a_new_message_is(tmp_path):
    """The alert rule `UnknownSenders` reads this counter."""
    with Federation(tmp_path, "one", "two", policy=AN_HOUR, rounds=1) as f:
        first = f.coordinator()
        two = f.raw("two")
        f.wait_until(lambda: f.events("joined"), "two to join")
        first.say(signal.SIGTERM)
        f.wait_for_end(first)
        two.stop()
        revoke(f.fleet.authority(), "two", "broken")
        f.coordinator()
        f.raw("one")  # The coordinator gets it after the messages that the broker has kept.
        f.wait_until(lambda: len(f.events("joined")) > 1, "one to join")
        assert unknown_senders(f) == 0
        f.raw("two")
        f.wait_until(lambda: unknown_senders(f) > 0, "a new message to be counted")


def test_a_running_device_whose_keys_are_deleted_names_their_folder_and_a_fix(
    tmp_path,
):
    with Federation(tmp_path, "one", policy=ALONE, rounds=1000) as f:
        f.coordinator()
        one = f.device("one")
        f.wait_until(f.rounds, "a round")
        shutil.rmtree(f.fleet.folder_of("one"))
        assert f.wait_for_end(one) == 2, f.last_words()
        log, where = f.log_of(one), f.fleet.folder_of("one") / CURRENT
        why = f"protofleet: there is no record of 'coordinator' in {where}"
        assert log.endswith(f"{why}; `protofleet enrol install` installs an enrolment\n")
        assert "Traceback" not in log
