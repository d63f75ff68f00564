"""The cost of a device in a round: how many numbers of each kind it sends and receives, and how many bytes.

The cost is computed by formulas. The kind of an array is the first part of its name in a message
("weights.head.bias" is of the kind "weights"). Numbers are counted as papers count them: a label, an id or a count
is one number, and a network has as many numbers as parameters. Bytes are the bytes that are sent over the network:
an int64 takes eight. The statistics of BatchNorm also count as bytes, although no paper counts them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import nn

from protofleet.methods.nets.base import Net, frozen_backbones


class Numbers(int):
    """A count of numbers, as in papers. The object also has the size of all these numbers in bytes."""

    bytes: int

    def __new__(cls, count: int, size: int | None = None) -> Numbers:
        """Make a count of numbers.

        `size` is the size of all numbers in bytes. Without `size`, each number takes four bytes.
        """
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
    """Return a count of int64 or float64 numbers, such as labels and counts."""
    return Numbers(count, 8 * count)


def bytes_of(count: int) -> int:
    """Return the bytes of a count; a plain int is a number of float32 values."""
    return count.bytes if isinstance(count, Numbers) else 4 * count


@dataclass(frozen=True, slots=True)
class Sizes:
    """All sizes on which the cost of a method can depend. The comments state the symbols of the papers."""

    # Network that the client half holds; in FedSR and FedNH it differs from the network of the plan.
    model: Net
    # |C_i|: number of classes that the device holds. With the setting `least_samples` above 1, a device sends at most
    # the rows of these classes, so the cost is at most what `cost` computes.
    held: int
    examples: int = 0  # N_i: number of examples of the device.
    clients: int = 1  # N: number of devices.
    # Sum over the classes c of J_i^c, the number of prototypes that the device has of class c.
    local_prototypes: int = 0
    global_prototypes: int = 0  # Sum over the classes m of C^m, the number of global prototypes of class m.
    first_round: bool = False
    last_rounds: bool = False  # True in the last rounds of RUCR, in which heads are retrained.
    # Rank of each matrix that a device sends as two factors, by the name of the matrix.
    ranks: Mapping[str, int] = field(default_factory=dict)
    # Rank of each matrix that a device receives as two factors, by the name of the matrix.
    ranks_down: Mapping[str, int] = field(default_factory=dict)
    public: tuple[int, ...] = ()  # Number of images in each batch of the public set.
    mutual: Net | None = None  # Mutual network of all devices, if it differs from the device's own network.
    # Number of classes that at least one device has held before this round; None means all classes.
    known: int | None = None
    # Sum of |C_j| over all devices j of the run; None means that each device holds all classes.
    held_by_all: int | None = None

    @property
    def weights(self) -> Numbers:
        """Return the count of all weights of the network, without a frozen backbone."""
        return parameters(self.model)

    @property
    def C(self) -> int:  # noqa: N802 - the papers' symbol
        """Return the number of classes."""
        return self.model.classes

    @property
    def rows(self) -> int:
        """Return the number of rows in a table with one row for each known class.

        The server of FedProto sends such a table.
        """
        return self.C if self.known is None else self.known

    @property
    def rows_of_all(self) -> int:
        """Return the number of rows in the tables of all devices; a device has a row for each class that it holds."""
        return self.clients * self.C if self.held_by_all is None else self.held_by_all

    @property
    def D(self) -> int:  # noqa: N802
        """Return the dimension of the space of prototypes and anchors."""
        return self.model.embedding_size


@dataclass(frozen=True, slots=True)
class Cost:
    """The numbers that a device sends and receives in a round, by kind.

    A plain int is a count of float32 numbers. `eight_bytes` and `Numbers` state other sizes.
    """

    up: Mapping[str, int] = field(default_factory=dict)
    down: Mapping[str, int] = field(default_factory=dict)
    # Numbers that a device receives in the last evaluation. None means that they are those of `down`.
    last: Mapping[str, int] | None = None

    @property
    def bytes_up(self) -> dict[str, int]:
        """Return the payload in bytes that one device sends in a round, by kind."""
        return {kind: bytes_of(count) for kind, count in self.up.items() if bytes_of(count)}

    @property
    def bytes_down(self) -> dict[str, int]:
        """Return the payload bytes that one device receives in a round, by kind of array.

        The coordinator sends a broadcast only once, for the whole cohort.
        """
        return {kind: bytes_of(count) for kind, count in self.down.items() if bytes_of(count)}

    @property
    def bytes_last(self) -> dict[str, int]:
        """Return the payload bytes that one device receives in the last evaluation, by kind of array."""
        last = self.down if self.last is None else self.last
        return {kind: bytes_of(count) for kind, count in last.items() if bytes_of(count)}


def parameters(module: nn.Module, keys: Collection[str] | None = None) -> Numbers:
    """Count the parameters of a module and the bytes of its state.

    The bytes include buffers such as the statistics of BatchNorm, because buffers are sent too. `keys` are the
    names of the arrays that are sent. Without `keys`, all arrays are sent except those of a frozen backbone.
    """
    same = tuple(f"{name}." for name, _ in frozen_backbones(module))
    learned = {name for name, _ in module.named_parameters()}
    found = Numbers(0)
    for name, value in module.state_dict().items():
        if not name.startswith(same) and (keys is None or name in keys):
            count = value.numel()
            found += Numbers(count if name in learned else 0, count * value.element_size())
    return found
