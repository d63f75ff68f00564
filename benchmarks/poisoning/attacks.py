"""The lies of one device. The liar knows the honest answers of all other devices in the same round.

Each function gets the honest answers and returns the answer of the liar. Arrays of whole numbers stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload

FLIP: Final = 5.0  # The liar sends an answer in the other direction, this many times as long.
SCALE: Final = 50.0  # The liar sends its own honest answer, this many times as long.
ALIE_Z: Final = 1.5  # "A little is enough": so many standard deviations below the mean of the honest answers.
DRIFT: Final = 0.2  # Part of the way from a class's prototype to the next class's prototype, in each round.
CONSTANT: Final = 1.0


@dataclass(frozen=True)
class Seen:
    """The messages that the liar knows in a round: the broadcast and the honest answers of all devices."""

    round: int
    broadcast: Payload
    own: Payload
    others: Sequence[Payload]


Attack: TypeAlias = Callable[[Seen], Payload]


def honest(seen: Seen) -> Payload:
    return seen.own


def sign_flip(seen: Seen) -> Payload:
    """Reverse the liar's own honest answer."""
    return changed(seen, lambda base, own, others: base - FLIP * (own - base))


def reversed_mean(seen: Seen) -> Payload:
    """Reverse the mean of all other answers, which is worse than the liar's own answer."""
    return changed(seen, lambda base, own, others: base - FLIP * (others.mean(dim=0) - base))


def scaling(seen: Seen) -> Payload:
    return changed(seen, lambda base, own, others: base + SCALE * (own - base))


def little_is_enough(seen: Seen) -> Payload:
    return changed(seen, lambda base, own, others: others.mean(dim=0) - ALIE_Z * others.std(dim=0))


def constant(seen: Seen) -> Payload:
    return changed(seen, lambda base, own, others: torch.full_like(own, CONSTANT))


def drift(seen: Seen) -> Payload:
    """Move each class's prototype towards the next class's prototype, a part of the way in each round."""
    table = rows_by_class(seen.others)
    labels = seen.own["labels"].tolist()
    part = min(1.0, DRIFT * seen.round)
    means = {label: torch.stack(rows).mean(dim=0) for label, rows in table.items()}
    known = sorted(means)
    rows = [
        torch.lerp(means[label], means[known[(known.index(label) + 1) % len(known)]], part)
        if label in means
        else row
        for label, row in zip(labels, seen.own["prototypes"], strict=True)
    ]
    return {**seen.own, "prototypes": torch.stack(rows)}


# The liar of "label flip" trains with wrong labels (`poisoned`), and then answers honestly.
ATTACKS: Final[Mapping[str, Attack]] = {
    "nobody": honest,
    "sign flip": sign_flip,
    "scaling": scaling,
    "ALIE": little_is_enough,
    "label flip": honest,
    "constant": constant,
    "reversed mean": reversed_mean,
    "drift": drift,
}
OF_PROTOTYPES: Final = frozenset({"drift"})


def changed(seen: Seen, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Payload:
    """Return the liar's answer; `change` gets the broadcast, the own numbers and those of the others [n, ...].

    A prototype has no broadcast: the difference is taken to zero.
    """
    table = rows_by_class(seen.others)
    found = dict(seen.own)
    for name, own in seen.own.items():
        if name == "prototypes":
            labels = seen.own["labels"].tolist()
            rows = [
                change(torch.zeros_like(row), row, torch.stack(table.get(label, [row, row])))
                for label, row in zip(labels, own, strict=True)
            ]
            found[name] = torch.stack(rows)
        elif own.is_floating_point():
            base = seen.broadcast.get(name, torch.zeros_like(own))
            value = change(base, own, torch.stack([other[name] for other in seen.others]))
            # A negative variance would be refused at once.
            found[name] = value.clamp(min=0) if name.endswith("running_var") else value
    return found


def rows_by_class(answers: Sequence[Payload]) -> dict[int, list[Tensor]]:
    found: dict[int, list[Tensor]] = {}
    for answer in answers:
        if "labels" in answer:
            for label, row in zip(answer["labels"].tolist(), answer["prototypes"], strict=True):
                found.setdefault(label, []).append(row)
    return found


def poisoned(y: Tensor, classes: int) -> Tensor:
    """Return the labels with which the liar of "label flip" trains."""
    return classes - 1 - y
