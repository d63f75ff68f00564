"""What halves give, by kind: a method that gives something else is told at which of its lines to mend it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

from torch import Tensor

from protofleet.methods.contract.base import Ask, Payload, Round, ServerHalf
from protofleet.methods.plugins.authors import AuthorError, defined_at


def round_of(server: ServerHalf) -> Round:
    """Begun nowhere yet."""
    found: object = server.round()
    if not isinstance(found, Generator):
        raise wrong(server.round, "must yield Ask(...), at least once", found)
    return found


def first_ask(server: ServerHalf, story: Round) -> Ask:
    try:
        return ask_of(server, next(story))
    except StopIteration:
        raise wrong(server.round, "must yield Ask(...), at least once; it ends without") from None


def ask_of(server: ServerHalf, found: object) -> Ask:
    if not isinstance(found, Ask):
        raise wrong(server.round, "must yield Ask(...)", found)
    tensors_of(found.payload, server.round, "must yield Ask(phase, payload) whose payload is")
    return found


def tensors_of(found: object, call: Callable[..., object], says: str = "must give") -> Payload:
    """What a half's `run`, `state` and the like have to be."""
    if not isinstance(found, Mapping):
        raise wrong(call, f'{says} {{"name": tensor, ...}}', found)
    if type(found) is dict:  # another kind is read from the disk, tensor by tensor
        for name, value in found.items():
            if not (isinstance(name, str) and isinstance(value, Tensor)):
                raise wrong(call, f'{says} {{"name": tensor, ...}}; {name!r} is {type(value).__name__}')
    return found


def wrong(call: Callable[..., object], says: str, *found: object) -> AuthorError:
    it_is = f"; it gives {type(found[0]).__name__}" if found else ""
    return AuthorError(f"{defined_at(call)}: {getattr(call, '__name__', 'it')}() {says}{it_is}")
