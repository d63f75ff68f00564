"""The rounds whose answers a coordinator keeps, as the plan of a run names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from protofleet.protocol.settings.bounds import Rounds

# Number of a round, or `last` for the last round of training, however the training ends.
KeptRound: TypeAlias = Rounds | Literal["last"]
LAST: Final = "last"


def keeps_last(rounds: Sequence[KeptRound]) -> bool:
    return LAST in rounds


def keeps(rounds: Sequence[KeptRound], number: int) -> bool:
    """Return whether the answers of a round are kept at first; any round may be the last one."""
    return keeps_last(rounds) or number in rounds


def problem_with(rounds: Sequence[KeptRound], total: int) -> str:
    """Return why a run of `total` rounds cannot keep the answers of these rounds; "" if it can."""
    late = [number for number in rounds if number != LAST and number > total]
    if not late:
        return ""
    return f'keep.answers names round {late[0]}, but the run has {total} rounds; take {total} or "{LAST}"'


def words_of(rounds: Sequence[KeptRound]) -> str:
    """Return the rounds in words, for a log line."""
    return ", ".join(f"the {LAST} round" if one == LAST else f"round {one}" for one in rounds)
