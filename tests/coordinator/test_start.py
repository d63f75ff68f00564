"""A process claims above each epoch that an operator names, that the broker knows, or that a device has proved."""

import time

import pytest

from protofleet.coordinator.leading.behind import BehindError
from protofleet.coordinator.leading.look import Blocked, Clear, Taken
from protofleet.coordinator.leading.standby import Looked
from protofleet.coordinator.spool.epochs import epoch_file, least_epoch
from protofleet.coordinator.start import claim_above, claim_again, highest_of_others
from protofleet.protocol.link.standby import SeenState
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.base import StopRequest
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.protocol.wire.messages import State
from protofleet.runtime.command.errors import OutrankedError, RunError, SignalledError

NOW, DAY = 1_790_000_000, 86_400


class Conducted:
    """A coordinator whose devices prove these epochs, one at each start."""

    def __init__(self, folder, proven, stopped_at=0):
        self.folder, self.proven, self.stopped_at = folder, list(proven), stopped_at
        self.pauses, self.claimed = [], []

    def __call__(self, pauses):
        self.pauses.append(pauses)
        self.claimed.append(least_epoch(self.folder, "sky", NOW))
        if len(self.pauses) > len(self.proven):
            return "over"
        behind = BehindError(self.claimed[-1], self.proven[len(self.pauses) - 1])
        behind.is_stopped = len(self.pauses) == self.stopped_at
        raise behind


def test_a_restored_process_claims_above_each_proved_epoch_and_pauses_the_runs_only_once(tmp_path):
    conduct = Conducted(tmp_path, [NOW + 50, NOW + 90])
    assert claim_again(conduct, True, tmp_path, "sky") == "over"
    assert conduct.claimed == [NOW, NOW + 51, NOW + 91] and conduct.pauses == [True, False, False]


def test_without_the_option_a_proved_epoch_ends_the_process_and_the_error_names_the_command(tmp_path):
    conduct = Conducted(tmp_path, [NOW + 50])
    with pytest.raises(BehindError, match=f"coordinator FILE --restored --above {NOW + 50}`$"):
        claim_again(conduct, False, tmp_path, "sky")
    assert conduct.pauses == [False] and not epoch_file(tmp_path, "sky").exists()


def test_a_signal_that_arrives_with_the_proof_ends_a_restored_process(tmp_path):
    conduct = Conducted(tmp_path, [NOW + 50, NOW + 90], stopped_at=2)
    with pytest.raises(BehindError):
        claim_again(conduct, True, tmp_path, "sky")
    assert conduct.pauses == [True, False]


def test_an_epoch_that_an_operator_names_is_stored_up_to_a_day_ahead_of_the_clock(tmp_path):
    claim_above(NOW + DAY - 1, tmp_path, "sky", NOW)
    assert least_epoch(tmp_path, "sky", NOW) == NOW + DAY
    with pytest.raises(SettingsError, match=f"--above is {NOW + 2 * DAY}, which is 2.0 days ahead"):
        claim_above(NOW + 2 * DAY, tmp_path, "sky", NOW)
    assert least_epoch(tmp_path, "sky", NOW) == NOW + DAY


class Told:
    """A standby whose look has this result."""

    def __init__(self, result):
        self.result = result

    def look(self, needs, take_over=False):
        return Looked(self.result)


def highest(result, queue=None):
    return highest_of_others(Told(result), 600.0, queue or ReceiveQueue(), lambda: False)


def test_the_look_before_a_claim_returns_the_highest_epoch_or_ends_the_process(caplog):
    assert highest(Clear(NOW)) == NOW
    with pytest.raises(OutrankedError, match="^hall-2 leads$"):
        highest(Taken(SeenState(NOW, "red", State(True), False), "hall-2 leads"))
    with pytest.raises(RunError, match="^another process asks$"):
        highest(Blocked("another process asks"))
    assert not caplog.records
    assert highest(Blocked("not authorized", is_lasting=True)) == 0
    assert "cannot ask whether another one leads: not authorized" in caplog.text
    assert highest_of_others(None, 600.0, ReceiveQueue(), lambda: False) == 0


def test_a_signal_during_the_look_ends_the_process(tmp_path):
    queue = ReceiveQueue()
    queue.put(StopRequest("signal: SIGTERM"))
    began = time.monotonic()
    with pytest.raises(SignalledError):
        highest(None, queue)
    assert time.monotonic() - began < 30
