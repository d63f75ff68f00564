"""What a participant sends and receives in a round, in closed form: numbers by kind, as the papers count them.

Kinds are the first parts of the wire's array names ("weights.head.bias" is of kind "weights"). Labels, ids and
counts are one number each. Weights are parameters: BatchNorm's statistics travel too, but no paper counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from protofleet.methods.nets.base import Net, frozen_backbones


@dataclass(frozen=True, slots=True)
class Sizes:
    """All that a method's cost can depend on. The letters are those of the papers."""

    model: Net  # as the device's half holds it: FedSR's and FedNH's is another than the plan's
    held: int  # |C_i|: classes that the device holds
    examples: int = 0  # N_i
    clients: int = 1  # N
    local_prototypes: int = 0  # sum over classes of J_i^c, where a method has several a class
    global_prototypes: int = 0  # sum over classes of C^m
    first_round: bool = False
    last_rounds: bool = False  # of RUCR's, in which heads are retrained
    ranks: Mapping[str, int] = field(default_factory=dict)  # of each matrix that goes up in factors
    ranks_down: Mapping[str, int] = field(default_factory=dict)  # of each that comes down so
    public: tuple[int, ...] = ()  # images of each batch of those that all devices have
    mutual: Net | None = None  # the network of all, where it is none like the device's own
    known: int | None = None  # classes that anybody has held before this round; None: all of them

    @property
    def weights(self) -> int:
        return parameters(self.model)

    @property
    def C(self) -> int:  # noqa: N802 - the papers' letter
        return self.model.classes

    @property
    def rows(self) -> int:
        """Of a table of classes that comes down with what is known of it, as in FedProto."""
        return self.C if self.known is None else self.known

    @property
    def D(self) -> int:  # noqa: N802
        """Of the space of prototypes and anchors."""
        return self.model.embedding_size


@dataclass(frozen=True, slots=True)
class Cost:
    up: Mapping[str, int] = field(default_factory=dict)
    down: Mapping[str, int] = field(default_factory=dict)


def parameters(module: nn.Module) -> int:
    """Of a frozen backbone, which nobody sends, none."""
    still = {p for _, backbone in frozen_backbones(module) for p in backbone.parameters()}
    return sum(p.numel() for p in module.parameters() if p not in still)
