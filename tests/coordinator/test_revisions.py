"""A command for a revision that its run does not have any more does not change the run."""

import pytest

from protofleet.coordinator.queue.commands import QueueCommand, Submission, decide
from protofleet.coordinator.queue.queue_file import QueueFile
from protofleet.coordinator.queue.settle import Change
from protofleet.coordinator.queue_requests import command_in
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk

ASKED = {"id": "ab" * 16, "verb": "stop", "run": "red", "reason": ""}


def decided(queue, verb, revision, number=1, rounds=0):
    command = QueueCommand(bytes([number]) * 16, "alice", verb, "red", rounds=rounds, revision=revision)
    decision = decide(command, queue.runs, 0, Submission("", 3) if verb == "submit" else None)
    queue.save(command, decision)
    return decision


@pytest.fixture
def queue(tmp_path):
    made = QueueFile(tmp_path, "lab", lambda: 1_790_000_000, Disk(durable=False))
    decided(made, "submit", None)
    made.change(Change("red", "queued", "waits for its turn"))
    yield made
    made.close()


@pytest.mark.parametrize("verb", ["stop", "pause", "resume", "extend"])
def test_a_command_for_another_revision_is_a_conflict_and_the_answer_gives_a_fix(queue, verb):
    row = queue.runs["red"]
    for revision in (row.revision - 1, row.revision + 1, 0):
        decision = decided(queue, verb, revision, 2 + revision, rounds=9)
        assert (decision.verdict, decision.changed) == ("conflict", ())
        assert f"revision {row.revision} and not {revision}, and is queued" in decision.words
        assert "`protofleet show runs/red`" in decision.words
    assert queue.runs["red"] == row
    assert decided(queue, verb, row.revision, 9, rounds=9).verdict == "done"
    assert decided(queue, verb, None, 10, rounds=9).verdict == "done"


def test_a_conflict_is_stored_so_that_the_same_command_stays_a_conflict(queue):
    decided(queue, "stop", 1, 7)
    stop = QueueCommand(bytes([7]) * 16, "alice", "stop", "red", revision=1)
    assert queue.result_of(stop).verdict == "conflict"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rev": -1}, "a whole number that `show` returns"),
        ({"rev": True}, "a whole number that `show` returns"),
        ({"rev": "3"}, "a whole number that `show` returns"),
        ({"rev": 1 << 60}, "a whole number that `show` returns"),
        ({"if_paused": True}, "stop does not take 'if_paused'; it takes run, reason, rev. Leave it out, or install"),
        ({"verb": "submit", "rev": 1}, "submit does not take 'rev'"),
        ({"verb": "runs", "rev": 1}, "runs does not take 'rev'"),
        ({"args": {"rounds": 3}}, "stop does not take 'rounds'"),
        ({"verb": "extend", "args": {"rounds": 3, "hours": 2}}, "extend does not take 'hours'"),
        ({"args": []}, "the key args of a request is an object"),
    ],
)  # fmt: skip
def test_an_unknown_key_of_a_command_is_refused(more, words):
    with pytest.raises(SettingsError) as found:
        command_in({**ASKED, **more}, "alice")
    assert words in str(found.value)


def test_a_request_without_the_key_rev_has_no_revision():
    assert command_in(ASKED, "alice").revision is None
    assert command_in({**ASKED, "rev": None}, "alice").revision is None
    assert command_in({**ASKED, "rev": 0, "args": {}}, "alice").revision == 0
