"""Checks of the values that the halves of a method return.

If a value is wrong, the error names the line that the author of the method must correct.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping

from torch import Tensor

from protofleet.methods.contract.base import Ask, ClientHalf, Payload, Round, ServerHalf
from protofleet.methods.contract.confusion import CONFUSION
from protofleet.methods.plugins.authors import AuthorError, defined_at
from protofleet.protocol.wire.kinds import Kinds


def round_of(server: ServerHalf) -> Round:
    """Return the generator that the server half's `round` makes; the generator has not been started."""
    found: object = server.round()
    if not isinstance(found, Generator):
        raise wrong(server.round, "must yield Ask(...), at least once", found)
    return found


def first_ask(server: ServerHalf, story: Round) -> Ask:
    try:
        return ask_of(server, next(story))
    except StopIteration:
        raise wrong(server.round, "must yield Ask(...), at least once; it ended without an Ask") from None


def ask_of(server: ServerHalf, found: object) -> Ask:
    if not isinstance(found, Ask):
        raise wrong(server.round, "must yield Ask(...)", found)
    tensors_of(found.payload, server.round, "must yield Ask(phase, payload) whose payload is")
    # CONFUSION is requested by the coordinator, not by the method.
    asked = [name for name in found.wants if name != CONFUSION]
    demand_declared(server.kinds, [*found.payload, *asked], server.round)
    return found


def answer_of(half: ClientHalf, ask: Ask) -> Payload:
    """Let a client half do a task, and return the arrays that it made for the server half."""
    found = tensors_of(half.run(ask), half.run)
    demand_declared(half.kinds, found, half.run)
    return found


def demand_declared(kinds: Kinds, names: Iterable[str], call: Callable[..., object]) -> None:
    """Raise an error for arrays that the method does not declare.

    Otherwise the bytes of such arrays would belong to no kind.
    """
    if undeclared := kinds.undeclared(names):
        raise wrong(
            call,
            f"sends the array {undeclared[0][:64]!r}, which METHOD does not declare; write "
            f"{declaration({*kinds.declared, *undeclared})}",
        )


def declaration(names: Iterable[str]) -> str:
    """Return the line that an author writes to declare these arrays."""
    words = [f'"{name}"' for name in sorted(names)]
    return f"Method(..., arrays=({', '.join(words)}{',' * (len(words) == 1)}))"


def tensors_of(found: object, call: Callable[..., object], says: str = "must give") -> Payload:
    """Return the tensors that a half's `run`, `state` or similar function has returned.

    Raise an error if the value is not a table of tensors.
    """
    if not isinstance(found, Mapping):
        raise wrong(call, f'{says} {{"name": tensor, ...}}', found)
    # Only a plain dict is checked. In another mapping, the check would read each tensor from the disk.
    if type(found) is dict:
        for name, value in found.items():
            if not (isinstance(name, str) and isinstance(value, Tensor)):
                raise wrong(call, f'{says} {{"name": tensor, ...}}; {name!r} is {type(value).__name__}')
    return found


def wrong(call: Callable[..., object], says: str, *found: object) -> AuthorError:
    it_is = f"; it gives {type(found[0]).__name__}" if found else ""
    return AuthorError(f"{defined_at(call)}: {getattr(call, '__name__', 'it')}() {says}{it_is}")
