"""The only place where a client half gets the arrays of a broadcast; wrong arrays end the task with a refusal."""

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

# Largest number of letters of a reason. The message Bye limits the length of its text.
MOST_LETTERS: Final = 300


def take_over(half: ClientHalf, payload: Payload) -> None:
    """Give a broadcast to a half, and raise WrongArraysError if the half cannot use the arrays.

    If the arrays cause another error, for example in torch, a WrongArraysError replaces it.
    """
    demand_declared_and_finite(half, payload)
    return_free_blocks()  # The check needed memory, which must be free before the half uses the arrays.
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
    """Turn WrongArraysError into a refusal of the task.

    If the code of an author's half has raised the error, turn it into AuthorError, which names the line.
    """
    try:
        yield
    except WrongArraysError as error:
        if words := words_of(error):
            raise AuthorError(words) from error
        says = printable(f"the broadcast of round {number} {ask.phase}: {error}")[:MOST_LETTERS]
        raise TrainerDiedError(DisconnectReason.WRONG_ARRAYS, says) from error
