"""Processes of one operator: their boots rise, and only one of them uses the keys at a time."""

import threading

import pytest

from protofleet.federation.remote.boot import keys_in_use, next_boot
from protofleet.protocol.link.clocks import MOST_AHEAD
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError

NOW = 1_800_000_000
AHEAD = NOW + int(MOST_AHEAD) + 10


def test_each_boot_is_higher_even_if_the_clock_stands_still_or_goes_back(tmp_path):
    boots = [next_boot(tmp_path, clock, 7) for clock in (NOW, NOW, NOW - 50, NOW + 9)]
    assert boots == [NOW, NOW + 1, NOW + 2, NOW + 9]
    (tmp_path / "boot").write_text("half a")  # A damaged file does not stop the operator.
    assert next_boot(tmp_path, NOW + 20, 7) == NOW + 20


def test_a_boot_too_far_ahead_blocks_the_operator_until_a_new_statement(tmp_path):
    next_boot(tmp_path, AHEAD, 7)
    with pytest.raises(SettingsError, match="the clock of this machine was ahead before"):
        next_boot(tmp_path, NOW, 7)
    assert next_boot(tmp_path, NOW, 8) == NOW


def test_a_second_command_waits_a_limited_time_for_the_first(tmp_path):
    done = []

    def second():
        with keys_in_use(tmp_path, 10):
            done.append("second")

    with keys_in_use(tmp_path):
        with pytest.raises(RunError, match="another command uses the keys"), keys_in_use(tmp_path, 0.0):
            pass
        waiting = threading.Thread(target=second)
        waiting.start()
        done.append("first")
    waiting.join(10)
    assert done == ["first", "second"]
