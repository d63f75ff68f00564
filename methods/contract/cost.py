"""What a participant sends and receives in a round, in closed form: numbers by kind, and the bytes that they take.

Kinds are the first parts of the wire's array names ("weights.head.bias" is of kind "weights"). Numbers are those that
papers count: labels, ids and counts are one each, weights are parameters. Bytes are those that cross: an int64 takes
eight, and BatchNorm's statistics, which no paper counts, take theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import nn

from protofleet.methods.nets.base import Net, frozen_backbones


class Numbers(int):
    """A count of numbers, as papers count them, and the bytes of the arrays that hold them."""

    bytes: int

    def __new__(cls, count: int, size: int | None = None) -> Numbers:
        """`size` in bytes; four each, if nothing else is said."""
        made = super().__new__(cls, count)
        made.bytes = 4 * count if size is None else size
        return made

    def __add__(self, other: int) -> Numbers:
        return Numbers(int(self) + int(other), self.bytes + bytes_of(other))

    def __sub__(self, other: int) -> Numbers:
        return Numbers(int(self) - int(other), self.bytes - bytes_of(other))

    def __mul__(self, times: int) -> Numbers:
        return Numbers(int(self) * times, self.bytes * times)

    __radd__ = __add__
    __rmul__ = __mul__


def eight_bytes(count: int) -> Numbers:
    """Return so many int64 or float64, such as labels and counts."""
    return Numbers(count, 8 * count)


def bytes_of(count: int) -> int:
    """Return the bytes of a count; a plain number is of float32."""
    return count.bytes if isinstance(count, Numbers) else 4 * count


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
    def weights(self) -> Numbers:
        """All weights of the network, without a frozen backbone."""
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
    """Numbers by kind. A plain int counts float32; `eight_bytes` and `Numbers` say other sizes."""

    up: Mapping[str, int] = field(default_factory=dict)
    down: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes_up(self) -> dict[str, int]:
        """Payload that one device sends in a round, by kind."""
        return {kind: bytes_of(count) for kind, count in self.up.items() if bytes_of(count)}

    @property
    def bytes_down(self) -> dict[str, int]:
        """Payload that one device receives in a round, by kind; a broadcast crosses once for the whole cohort."""
        return {kind: bytes_of(count) for kind, count in self.down.items() if bytes_of(count)}


def parameters(module: nn.Module, keys: Collection[str] | None = None) -> Numbers:
    """Count a module's parameters, and the bytes of its state: buffers such as BatchNorm's statistics travel too.

    `keys` are those of its state that travel; without any, all of them but those of a frozen backbone.
    """
    same = tuple(f"{name}." for name, _ in frozen_backbones(module))
    learned = {name for name, _ in module.named_parameters()}
    found = Numbers(0)
    for name, value in module.state_dict().items():
        if not name.startswith(same) and (keys is None or name in keys):
            count = value.numel()
            found += Numbers(count if name in learned else 0, count * value.element_size())
    return found
