"""Tests that a log entry is one line, for any content."""

import io
import logging
import sys
import threading

import pytest

from protofleet.cli.main import main
from protofleet.protocol.wire.printable import printable
from protofleet.runtime.logs import FORMAT, LONGEST, PrintableFormatter


def lines(say):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrintableFormatter(FORMAT))
    log = logging.Logger("of a test")
    log.addHandler(handler)
    say(log)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    "nasty", ["\n", "\r", "\x1b[2J", "\x00", "\x85", "\u2028", "\u202e", "\x9b31m", "\t"]
)
def test_characters_that_are_not_printable_are_escaped(nasty):
    (line,) = lines(lambda log: log.warning("it says %s", f"a{nasty}2026-01-01 INFO all is well"))
    assert line.isprintable() and line.endswith("2026-01-01 INFO all is well")


def test_letters_of_all_languages_stay_unchanged():
    assert printable("größer 東京 é") == "größer 東京 é"


def test_no_line_of_a_traceback_looks_like_a_message():
    def say(log):
        try:
            raise ValueError("bad\n2026-01-01 00:00:00,000 INFO forged \x1b[2J")
        except ValueError:
            log.exception("it broke")

    first, *rest = lines(say)
    assert first.endswith("ERROR it broke")
    assert all(line.startswith("  ") and line.isprintable() for line in rest) and "forged" in rest[-1]


def test_a_long_message_is_cut_and_states_the_number_of_missing_letters():
    (line,) = lines(lambda log: log.warning("%s", "x" * 100_000))
    assert len(line) < LONGEST + 100 and line.endswith("and 95904 letters more")


def test_a_command_called_from_python_does_not_change_the_hooks_of_its_caller(tmp_path):
    before = sys.excepthook, threading.excepthook
    assert main(["health", str(tmp_path / "none.toml")]) == 2
    assert (sys.excepthook, threading.excepthook) == before
