"""From a question to what it needs: take over, measure, train, measure. Runs on the worker's thread.

Devices measure every model that they hold anyway, which costs no bytes: the global one as it arrives, where the
method has one, and their own when the phase "train" has made it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protofleet.edge_client.evaluate import Splits, evaluate
from protofleet.methods.contract.base import Ask, ClientHalf, Payload
from protofleet.methods.contract.plan import Plan

Build = Callable[[Plan], ClientHalf]
Work = Callable[[ClientHalf, Splits, Ask, int, str], tuple[Payload, dict[str, float]]]

TRAIN: Final = "train"  # the phase that changes a device's model
EVALUATE: Final = "evaluate"  # after the last round


def work(
    half: ClientHalf, data: Splits, ask: Ask, number: int, reports: str
) -> tuple[Payload, dict[str, float]]:
    """What goes back to the server half, and what was measured."""
    half.begin(number)
    half.receive(ask.payload)
    if ask.phase == EVALUATE:
        half.settle()
        return {}, evaluate(half, data, reports)
    metrics = {}
    if ask.phase == TRAIN and reports == "global":
        metrics = evaluate(half, data, "global")
    payload = half.run(ask)
    if ask.phase == TRAIN:
        metrics |= evaluate(half, data, "personal")
    return payload, metrics
