"""A server half whose state is a table; the row of a class is the mean of the devices' rows for this class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from protofleet.methods.contract.base import Ask, Payload, Reply, Round, ServerHalf
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.means import ClassMeans, average_class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.prototypes import class_means_in, held_row_wants, known_rows, table_of
from protofleet.methods.parts.state import snapshot


class TableServer(ServerHalf):
    """A server half with a table of class rows.

    A class that no device of a round holds keeps its row. A class that no device has ever held is not known.
    """

    def __init__(self, model: Net, hyper: object, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.prototypes, self.known = table_of({}, model, self.width)

    @property
    def width(self) -> int:
        return self.model.embedding_size

    def merge(self, pieces: Iterable[ClassMeans], weights: Sequence[float] | None = None) -> ClassMeans:
        """Return the mean of the devices' rows of each class; every device that holds the class counts once.

        If there are late replies, `weights` has the weight of each device.
        """
        return average_class_means(pieces, weights)

    def round(self) -> Round:
        replies = yield Ask("train", self.payload(), self.wants())
        self.learn(replies)

    def learn(self, replies: Sequence[Reply]) -> None:
        weights = [reply.weight for reply in replies]
        merged, counts = self.merge(self.pieces(replies), weights if set(weights) != {1.0} else None)
        held = counts > 0
        self.prototypes = torch.where(held.unsqueeze(1), merged, self.prototypes)
        self.known = self.known | held

    def pieces(self, replies: Sequence[Reply]) -> Iterable[ClassMeans]:
        """Return the rows of each device, and the number of samples of each row."""
        return (class_means_in(reply.payload, self.model.classes) for reply in replies)

    def wants(self) -> Mapping[str, TensorSpec]:
        return held_row_wants(self.model, width=self.width)

    def payload(self) -> Payload:
        return known_rows(self.prototypes, self.known)

    def state(self) -> Payload:
        return snapshot(self.payload())

    def restore(self, state: Payload) -> None:
        self.prototypes, self.known = table_of(state, self.model, self.width)
