"""Tests of an interrupt during the import of code that treats each error as a missing module."""

import contextlib
import signal
import threading

import pytest

from protofleet.runtime.interrupts import held_interrupts


@pytest.fixture(autouse=True)
def pythons_own_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "it was put back"
    signal.signal(signal.SIGINT, before)


def interrupted(times=1):
    """Raise SIGINT and drop the error, as an imported module may do."""
    for _ in range(times):
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)


def test_a_dropped_interrupt_is_raised_at_the_end_of_the_block():
    went_on = False
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        interrupted()
        went_on = True
    assert went_on


def test_a_second_interrupt_is_raised_at_once():
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        interrupted()
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it has waited")


def test_a_block_without_an_interrupt_raises_nothing():
    went_on = False
    with held_interrupts():
        went_on = True
    assert went_on


def test_an_error_of_the_block_is_raised_in_place_of_the_interrupt():
    with pytest.raises(ImportError), held_interrupts():
        interrupted()
        raise ImportError("no such module")


def test_another_signal_handler_is_not_replaced():
    said = []
    signal.signal(signal.SIGINT, lambda number, frame: said.append(number))
    with held_interrupts():
        signal.raise_signal(signal.SIGINT)
        assert said == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_thread_that_gets_no_signals_may_hold_interrupts():
    errors = []

    def load():
        try:
            with held_interrupts():
                pass
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert errors == []
