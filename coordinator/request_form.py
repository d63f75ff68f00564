"""Read the requests of operators: the keys that each command takes, and the values of these keys.

A key that a command does not take is refused, so that no command is carried out without a condition that its sender
has set.
"""

from __future__ import annotations

import queue
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar, get_args

from protofleet.coordinator.moving.place import HAND_OVER
from protofleet.coordinator.queue.commands import Sender
from protofleet.protocol.security.operators import ADMIT, LEAD, RUN, SHOWS, VIEW, shown_grants
from protofleet.protocol.settings.bounds import Rounds
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.printable import printable
from protofleet.runtime.control_socket import SECONDS

R = TypeVar("R")

ID: Final = re.compile(r"[0-9a-f]{32}")
MOST_SHOWN: Final = 64  # Largest number of letters of a wrong name that is shown.
OF_EACH: Final = ("id", "verb", "run", "reason", "args")  # Keys of each request.
FOLLOW: Final = "follow"
OF_NO_RUN: Final = ("runs", "labels", "log", "label", HAND_OVER)  # Verbs that name no run.
# The grant that a verb needs; the other verbs need the grant `run`.
GRANTS: Final = {**dict.fromkeys(SHOWS, VIEW), "label": ADMIT, HAND_OVER: LEAD}
REVISION: Final = "rev"
OF_A_VERB: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("pause", "resume", "extend", "stop"), (REVISION,)),
    "submit": ("experiment", "after", "priority", "from"),
    "label": ("device", "group", "labels"),
    FOLLOW: ("after", "epoch"),
}


def demand_known_keys(request: Mapping[str, Any]) -> None:
    """Raise SettingsError if the request has a key that its command does not take, or a wrong place."""
    verb = request["verb"]
    own = OF_A_VERB.get(verb, ())
    args = request.get("args", {})
    if not isinstance(args, dict):
        raise SettingsError("the key args of a request is an object")
    known = {"extend": ("rounds",), "resume": ("new_generation", "keep_halves")}.get(verb, ())
    for key in [*sorted(request.keys() - {*OF_EACH, *own}), *sorted(args.keys() - {*known})]:
        takes = ", ".join(("run", "reason", *known, *own))
        raise SettingsError(
            f"{printable(verb)[:MOST_SHOWN]} does not take {printable(key)[:MOST_SHOWN]!r}; it takes {takes}. Leave "
            "it out, or install a version of the coordinator that knows it"
        )
    if verb == FOLLOW:
        demand_place(request)


class RequestHandler(Protocol):
    """A function that carries out a request and returns its answer.

    `sender` is given for a command that came through the broker.
    """

    def __call__(
        self, user: str, request: Mapping[str, Any], sender: Sender | None = None
    ) -> Mapping[str, Any]: ...


class GrantedCommand(Protocol):
    """A command with its operator."""

    @property
    def operator(self) -> str: ...
    @property
    def verb(self) -> str: ...
    @property
    def sender(self) -> Sender | None: ...


def denial_of(command: GrantedCommand) -> str:
    """Return why the operator may not give the command, and the way out; "" if the operator may give it."""
    needed = GRANTS.get(command.verb, RUN)
    if command.sender is None or needed in command.sender.grants:
        return ""
    name, grants = command.operator, shown_grants({*command.sender.grants, needed})
    return (
        f"{name} has no grant {needed!r}, which {printable(command.verb)[:MOST_SHOWN]} needs; whoever holds the root "
        f"gives it with `protofleet enrol approve root/requests/{name}.request --grants {grants}`, and copies "
        f"root/records/{name}.operator to the coordinator"
    )


def demand_place(request: Mapping[str, Any]) -> None:
    """Raise SettingsError if the command `follow` names no place in the lines of a run."""
    for key in OF_A_VERB[FOLLOW]:
        value = request.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
            raise SettingsError(f"{key} of `{FOLLOW}` is a whole number that `{FOLLOW}` returns")


def rounds_in(request: Mapping[str, Any]) -> int:
    """Return the number of rounds of the command `extend`, and 0 for any other command."""
    if request["verb"] != "extend":
        return 0
    match request.get("args"):
        case {"rounds": int(rounds)} if not isinstance(rounds, bool):
            bound = get_args(Rounds)[1]
            if rounds in bound:
                return rounds
            raise SettingsError(f"rounds is {rounds}, it must be {bound}")
    raise SettingsError("`extend` needs args with the whole number rounds")


def generation_in(request: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether the command `resume` begins a new generation, and whether its devices keep their halves."""
    args = (request.get("args") or {}) if request["verb"] == "resume" else {}
    match args.get("new_generation", False), args.get("keep_halves", False):
        case bool(new), bool(keeps) if new or not keeps:
            return new, keeps
    raise SettingsError(
        "`resume` takes the booleans new_generation and keep_halves; the second needs the first"
    )


def revision_in(request: Mapping[str, Any]) -> int | None:
    """Return the revision of the run that the operator has looked at, or None if the request names none."""
    match request.get(REVISION):
        case None:
            return None
        case int(revision) if not isinstance(revision, bool) and 0 <= revision < 1 << 53:
            return revision
    raise SettingsError(f"{REVISION} is the revision of the run, a whole number that `show` returns")


def answer_of_loop(
    put: Callable[[Callable[[], None]], None], begin: Callable[[Callable[[R], None]], None]
) -> R | None:  # fmt: skip
    """Call `begin` on the thread of the event loop, and return the answer; None if no answer comes in time.

    `put` makes that thread call a function, and `begin` gets the function that takes the answer.
    """
    answers: queue.SimpleQueue[R] = queue.SimpleQueue()
    put(lambda: begin(answers.put))
    try:
        return answers.get(timeout=SECONDS)
    except queue.Empty:
        return None


NO_ANSWER: Final[Mapping[str, Any]] = {
    "verdict": "unknown",
    "words": "the coordinator did not answer in time, for example because its disk is full; see its log",
}
