"""Put the state of another run into a new server half, and make sure that the state fits."""

from __future__ import annotations

from protofleet.methods.contract.base import Payload, ServerHalf
from protofleet.protocol.settings.reader import SettingsError


def start_with(server: ServerHalf, state: Payload, origin: str) -> None:
    """Restore the state of another run; raise SettingsError with the name of an array that does not fit.

    `origin` are words for the state.
    """
    needed = {name: tuple(value.shape) for name, value in server.state().items()}
    given = {name: tuple(state[name].shape) for name in state}
    try:
        server.restore(state)
        taken = {name: tuple(value.shape) for name, value in server.state().items()}
    except (RuntimeError, LookupError, ValueError, TypeError) as error:
        common = needed.keys() & given.keys()
        words = _different({name: given[name] for name in common}, {name: needed[name] for name in common})
        raise SettingsError(f"{origin} does not fit this run: {words or error}") from None
    if problem := _different(given, taken):
        raise SettingsError(f"{origin} does not fit this run: {problem}")


def _different(given: dict[str, tuple[int, ...]], needed: dict[str, tuple[int, ...]]) -> str:
    for name in sorted({*given, *needed}):
        if name not in given:
            return f"the array {name} with the shape {needed[name]} is missing"
        if name not in needed:
            return f"the array {name} with the shape {given[name]} is not part of the state of this run"
        if given[name] != needed[name]:
            return f"the array {name} has the shape {given[name]}, and this run needs {needed[name]}"
    return ""
