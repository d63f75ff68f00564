"""The only place where a client half gets broadcast arrays; if the arrays are wrong, the task is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.methods.contract.base import Ask, ClientHalf, Payload
from protofleet.methods.contract.received import (
    ReceivedArrays,
    WrongArraysError,
    demand_declared_and_finite,
)
from protofleet.methods.plugins.authors import AuthorError, words_of
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import DisconnectReason
from protofleet.runtime.allocator import return_free_blocks
from protofleet.runtime.faults import as_authors, is_ours

MOST_LETTERS: Final = 300  # largest number of letters of a reason, because the text of a Bye has a limit


def take_over(half: ClientHalf, payload: Payload) -> None:
    """Give a broadcast to a half, and raise WrongArraysError if the half cannot use the arrays.

    Other errors that the arrays cause, for example in torch, are replaced by this error.
    """
    demand_declared_and_finite(half, payload)
    return_free_blocks()  # free the memory of the check, before the arrays are used
    broadcast = ReceivedArrays(payload)
    try:
        half.receive(broadcast)
    except WrongArraysError:
        raise
    except Exception as error:
        if is_ours(error) or as_authors(error) or type(error).__module__.startswith("protofleet."):
            raise
        raise WrongArraysError(f"{broadcast.last or 'an array'}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def refusing_wrong_arrays(ask: Ask, number: int) -> Iterator[None]:
    """Turn WrongArraysError into a refusal of the task or, in an author's half, into AuthorError with the line."""
    try:
        yield
    except WrongArraysError as error:
        if words := words_of(error):
            raise AuthorError(words) from error
        says = printable(f"the broadcast of round {number} {ask.phase}: {error}")[:MOST_LETTERS]
        raise TrainerDiedError(DisconnectReason.WRONG_ARRAYS, says) from error
