"""What is kept from a library that calls back is counted, and said once an hour."""

import logging

import pytest

from protofleet.protocol.transport.callbacks import SAY_SECONDS, Failures, never_raises


class Connection:
    def __init__(self, clock):
        self.failures = Failures(clock)

    @never_raises
    def arrived(self, number):
        raise ZeroDivisionError(number)

    @never_raises
    def left(self):
        raise KeyError


@pytest.mark.parametrize("hours", [1, 3])
def test_each_place_is_said_once_an_hour_with_how_often_it_was_not(caplog, hours):
    now = [0.0]
    connection = Connection(lambda: now[0])
    with caplog.at_level(logging.ERROR):
        for hour in range(hours):
            now[0] = hour * SAY_SECONDS
            for number in range(1000):
                connection.arrived(number)
        connection.left()
    said = [record.message for record in caplog.records]
    again = "arrived failed, 999 times more since this was last said"
    assert said == ["arrived failed", *[again] * (hours - 1), "left failed"]
    assert all(record.exc_info for record in caplog.records)
    assert connection.failures.count == 1000 * hours + 1
