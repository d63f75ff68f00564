"""A table of rows that devices send without counts; the counts that they stated when they joined limit the rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch

from protofleet.methods.contract.base import Member, Payload, Reply
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.means import ClassMeans, class_sums, means_of
from protofleet.methods.parts.prototypes import class_row_wants
from protofleet.methods.parts.small_classes import DevicesByClass
from protofleet.methods.parts.tables import TableServer


class StatedCountsServer(DevicesByClass, TableServer):
    """A server half whose devices send means, or sums over all samples of a class.

    `sums` is true for sums. `largest` is the largest norm of a mean.
    """

    refused = 0  # Number of rows of this round that were left out.

    @property
    @abstractmethod
    def largest(self) -> float: ...

    @property
    @abstractmethod
    def sums(self) -> bool: ...

    def wants(self) -> Mapping[str, TensorSpec]:
        most = max([1, *(count for member in self.cohort for count in member.counts)])
        largest = self.largest * (most if self.sums else 1)
        return class_row_wants(self.model, largest, self.width, row_per_example=True)

    def pieces(self, replies: Sequence[Reply]) -> Iterator[ClassMeans]:
        members, self.refused = {member.device: member for member in self.cohort}, 0
        self.count_devices(replies)
        for reply in sorted(replies, key=lambda reply: reply.device):
            yield self.accepted(reply.payload, members[reply.device])

    def accepted(self, payload: Payload, member: Member) -> ClassMeans:
        """Return the means [C, s] in float64, and their weights [C]: numbers of samples for sums, otherwise 1.

        A row is left out, with the weight 0, if the device has stated no sample of the class, or if the norm of the
        mean is too large.
        """
        rows, sent = class_sums(payload["prototypes"], payload["labels"], self.model.classes)
        weights = torch.tensor(member.counts, device=sent.device)
        if self.sums:  # A cap of the weights lowers the counts of a member, and so must lower its sums.
            means = means_of(rows * (sum(member.counts) / max(member.examples, 1)), weights)
        else:
            means, weights = means_of(rows, sent), weights.clamp(max=1)
        good = (sent > 0) & (weights > 0) & (means.norm(dim=1) <= self.largest)
        self.refused += int(((sent > 0) & ~good).sum())
        return means, weights * good

    def monitor(self) -> Mapping[str, float]:
        return {**super().monitor(), "rows.refused": float(self.refused)}
