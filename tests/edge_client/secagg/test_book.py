"""The book of an attempt survives a restart, and damaged bytes are refused."""

from dataclasses import replace

import pytest

from protofleet.edge_client.secagg.book import read_book
from protofleet.edge_client.secagg.past_attempts import PastAttempts
from protofleet.protocol.secagg.control_arrays import SumStep
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from tests.support.secagg_fleet import NAMES, STEPS, Fleet, numbers, terms


def books():
    """Return the book of a device after each step, and after the end of the attempt."""
    found = []
    fleet = Fleet(terms(4), numbers(4)).begin()

    class Watched(Fleet):
        def answers(self, question):
            replies = super().answers(question)
            found.append(self.instances[NAMES[0]].book)
            return replies

    Watched(fleet.terms, fleet.vectors, {NAMES[3]: SumStep.MASKED}, instances=fleet.instances).run()
    return [*found, found[2].ended()]


def test_the_book_of_each_step_is_equal_after_encoding_and_reading():
    found = books()
    assert len(found) == len(STEPS) + 1
    assert [read_book(book.encode()) for book in found] == found


def test_past_attempts_are_equal_after_encoding_and_reading():
    past = PastAttempts(3, (bytes(16), bytes(15) + b"\x01"), True, NAMES)
    book = replace(books()[0], past=past)
    assert read_book(book.encode()).past == past


def test_a_book_is_small_because_it_does_not_contain_the_vector():
    assert max(len(book.encode()) for book in books()) < 3000


@pytest.mark.parametrize("step", range(6))
def test_a_book_with_missing_or_extra_bytes_is_refused(step):
    data = books()[step].encode()
    for wrong in (data[:-1], data + b"\x00", data[: len(data) // 2], b""):
        with pytest.raises(SecaggError, match="damaged") as error:
            read_book(wrong)
        assert error.value.why is SecaggFault.MALFORMED


@pytest.mark.parametrize(
    ("step", "change"),
    [
        (0, {"roster": b"\x00"}),
        (0, {"shares": bytes(246)}),
        (1, {"shares": b""}),
        (1, {"survivors": b"\x0f"}),
        (2, {"vector": b""}),
        (2, {"first": b""}),
        (2, {"first": b"\xff"}),
        (2, {"released": bytes(132)}),
        (3, {"first": b"\x07"}),
        (4, {"released": bytes(33)}),
        (4, {"past": PastAttempts(4, (bytes(15) + b"\x01",))}),
        (4, {"past": PastAttempts(3, (bytes(16),))}),
    ],
)
def test_a_book_with_inconsistent_fields_is_refused(step, change):
    with pytest.raises(SecaggError, match="do not fit|no bitmap|a roster of"):
        read_book(replace(books()[step], **change).encode())


def test_secrets_that_do_not_fit_the_roster_are_refused():
    book = books()[2]
    for change in ({"own": b""}, {"opened": book.secrets.opened[:3]}, {"opened": (b"\x01",) * 4}):
        with pytest.raises(SecaggError, match="do not fit"):
            read_book(replace(book, secrets=replace(book.secrets, **change)).encode())
