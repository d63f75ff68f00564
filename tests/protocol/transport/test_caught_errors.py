"""Tests that errors in callbacks, which a library must not see, are counted, and logged once an hour."""

import logging

import pytest

from protofleet.protocol.transport.caught_errors import LOG_SECONDS, CaughtErrors, never_raises


class Connection:
    def __init__(self, clock):
        self.errors = CaughtErrors(clock)

    @never_raises
    def arrived(self, number):
        raise ZeroDivisionError(number)

    @never_raises
    def left(self):
        raise KeyError


@pytest.mark.parametrize("hours", [1, 3])
def test_each_place_is_logged_once_an_hour_with_the_number_of_errors_not_logged(caplog, hours):
    now = [0.0]
    connection = Connection(lambda: now[0])
    with caplog.at_level(logging.ERROR):
        for hour in range(hours):
            now[0] = hour * LOG_SECONDS
            for number in range(1000):
                connection.arrived(number)
        connection.left()
    said = [record.message for record in caplog.records]
    again = "arrived failed, 999 times more since this was last said"
    assert said == ["arrived failed", *[again] * (hours - 1), "left failed"]
    assert all(record.exc_info for record in caplog.records)
    assert connection.errors.count == 1000 * hours + 1
