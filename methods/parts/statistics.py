"""Halves of methods that train nothing: each device sends statistics of its features, and the server solves a head.

A feature phi(x) is the embedding of the network as the run begins, in evaluation mode. So it is the same on every
device. One round is enough. A later round asks only the devices that have not answered yet.
A subclass of the server half defines `wants` and `solve`, and a subclass of the client half defines `statistics`.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from protofleet.methods.contract.base import (
    Ask,
    ClientHalf,
    Member,
    Payload,
    Reply,
    Round,
    Samples,
    ServerHalf,
)
from protofleet.methods.contract.cost import Sizes, eight_bytes
from protofleet.methods.contract.private_sums import SUMS, SUMS_PHASE
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.geometry import same_norm
from protofleet.methods.maths.means import class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.kept_answers import KeptAnswers
from protofleet.methods.parts.local import demand_one_of, embed
from protofleet.methods.parts.prototypes import held_row_wants, held_rows, row_specs
from protofleet.methods.parts.rules import Linear
from protofleet.methods.parts.small_classes import (
    LeastSamples,
    class_figures,
    devices_by_class,
    log,
    sent_classes,
)
from protofleet.protocol.settings.reader import SettingsError, demand_within

server_log = logging.getLogger("protofleet.coordinator")

Features: TypeAlias = Literal["normalised", "raw"]

HEAD_ROWS: Final = ("head", "labels")  # The kinds that METHOD declares for `head_rows`.
NOTHING: Final[Payload] = {}
# A codec of 4 bits can make a row longer than the mean of normalised features can be, by some per cent.
ROW_ROOM: Final = 1.1


@dataclass(frozen=True)
class StatisticsHyper:
    """The settings of all methods that send statistics of features. These methods have no epochs and no batch."""

    features: Features = "normalised"
    """Form of a feature, `normalised` (scaled to norm sqrt(D)) or `raw` (as the network returns it)."""
    least_samples: LeastSamples = 5
    """Least number of samples of a class on a device; a device sends nothing about a class with fewer samples,
    because a mean of one sample is that sample's feature; the paper's numbers need 1.
    """

    def __post_init__(self) -> None:
        demand_within(self)
        demand_one_of("features", self.features, get_args(Features))

    @property
    def normalised(self) -> bool:
        """Return whether features are scaled to norm sqrt(D)."""
        return self.features == "normalised"


class StatisticsServer(ServerHalf):
    """A server half that keeps the newest statistics of each device, and solves the head from all of them."""

    hyper: StatisticsHyper
    keeps_answers = True

    def __init__(self, model: Net, hyper: StatisticsHyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.answers = KeptAnswers()
        self.solved: Payload = NOTHING  # What `solve` returned last; nothing before the first answer.

    @abstractmethod
    def wants(self) -> Mapping[str, TensorSpec]:
        """Return the specifications of the statistics."""

    @abstractmethod
    def solve(self, replies: Sequence[Reply]) -> Payload:
        """Return the arrays of the head, from the statistics of all devices in the order of their names.

        Each reply is as `kept` has returned it. If no device has sent a class, return {}.
        """

    def refusal(self, reply: Reply) -> str:
        """Return why an answer cannot be used although it fits `wants`, with value and limit; "" if it can."""
        return ""

    def too_few(self, samples: float) -> str:
        """Return why a head needs more samples than these of all devices, with value and limit; "" if it does not."""
        return ""

    def round(self) -> Round:
        if self.number >= self.rounds and (reason := self.too_few(self._stated_samples())):
            raise SettingsError(reason)
        replies = yield Ask(SUMS_PHASE, NOTHING, self.wants())
        self.answers.keep(self.kept(reply for reply in replies if self._is_usable(reply)))
        self._say_who_sends_nothing({reply.device for reply in replies})
        self._solve_again()

    def _stated_samples(self) -> int:
        """Return the samples of the devices of this round, as they have stated, and of those that have answered."""
        kept = {reply.device: reply.examples for reply in self.answers.replies()}
        return sum({**kept, **{member.device: member.examples for member in self.cohort}}.values())

    def _say_who_sends_nothing(self, devices: Collection[str]) -> None:
        for device in sorted(self.unused().intersection(devices)):
            server_log.warning(
                "%s takes no part in the head of round %d: it has no class with method.least_samples = %d samples",
                device, self.number, self.hyper.least_samples,
            )  # fmt: skip

    def _solve_again(self) -> None:
        kept = self._capped()
        enough = kept and not self.too_few(sum(map(counted_samples, kept)))
        self.solved = self.solve(kept) if enough else NOTHING

    def lacking(self) -> str:
        if self.solved:
            return ""
        kept, least = self._capped(), self.hyper.least_samples
        counted = sum(map(counted_samples, kept))
        if not kept:
            return "no device has sent statistics that can be used, so there is no head"
        found = (
            "the sum has no" if self.summed else f"none of the {len(kept)} devices that have answered has a"
        )
        return self.too_few(counted) or (
            f"{found} class with method.least_samples = {least} samples, so there is no head; set "
            "method.least_samples lower, or give the devices more samples"
        )

    def _capped(self) -> Sequence[Reply]:
        """Return the kept answers, with the limits on claimed samples that follow from all of them."""
        return self.capped(self.answers.replies(), self.wants())

    def kept(self, replies: Iterable[Reply]) -> Iterable[Reply]:
        """Return the answers in the form in which they are kept, with the arrays `labels` and `counts`."""
        return replies

    def _is_usable(self, reply: Reply) -> bool:
        if reason := self.refusal(reply):
            server_log.warning(
                "the answer of %s to round %d is not used: %s", reply.device, self.number, reason
            )
        return not reason

    def answered(self) -> frozenset[str]:
        # A sum is no answer of a device. The sum of a later round replaces it.
        return frozenset() if self.summed else self.answers.devices()

    def unused(self) -> frozenset[str]:
        """Return the devices that have no class with `least_samples` samples."""
        kept = [] if self.summed else self.answers.replies()
        return frozenset(reply.device for reply in kept if not len(reply.payload["labels"]))

    def forget(self, devices: Collection[str]) -> None:
        for device in devices:
            self.answers.drop(device)
        self._solve_again()

    def payload(self) -> Payload:
        return self.solved

    def monitor(self) -> Mapping[str, float]:
        """Return how many answers are kept, how many of them have each class, and how many samples are counted.

        A class without devices is never predicted. A sum shows only the number of samples.
        """
        replies = self._capped()
        counted = sum(map(counted_samples, replies))
        if self.summed:
            return {"samples.counted": float(counted)}
        total = sum(reply.examples for reply in replies)
        holders = class_figures(
            devices_by_class([reply.payload["labels"] for reply in replies], self.model.classes).tolist()
        )
        kept = {"answers.kept": float(len(replies)), "samples.counted": float(counted)}
        return {**holders, **kept, "samples.left_out": float(total - counted)}

    def state(self) -> Payload:
        return {**self.answers.state(), **{f"solved.{name}": value for name, value in self.solved.items()}}

    def restore(self, state: Payload) -> None:
        self.answers.restore(state)
        prefix = "solved."
        self.solved = {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}


class StatisticsClient(ClientHalf):
    """A client half that sends statistics of its features once a round, and trains nothing."""

    hyper: StatisticsHyper
    bias: bool = False  # True if a row of the head has D + 1 numbers, the bias as its last number.

    def __init__(self, model: Net, data: Samples, hyper: StatisticsHyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.head: nn.Module | None = None

    def receive(self, payload: Payload) -> None:
        if has_head(payload):
            self.head = self.linear(*head_table(payload, self.model, self.bias))

    def linear(self, rows: Tensor, known: Tensor) -> Linear:
        """Return the rule for a head [C, D or D + 1] and the mask [C] of its known classes."""
        weight = rows[:, : self.model.embedding_size]
        bias = rows[:, -1] if self.bias else rows.new_zeros(len(rows))
        return Linear(weight, bias, known, normalised=self.hyper.normalised)

    def run(self, ask: Ask) -> Payload:
        if self.sums is not None:
            # Classes with few samples are left out after the noise, because which classes these are is a secret too.
            return {
                SUMS: self.sums.vector(
                    scaled(embed(self.model, self.data.x).double(), self.hyper), self.data.y
                )
            }
        z, y = self.features()
        return self.statistics(z, y)

    @abstractmethod
    def statistics(self, z: Tensor, y: Tensor) -> Payload:
        """Return the statistics of the features z [N, D], in float64, and of their classes y [N]."""

    def features(self) -> tuple[Tensor, Tensor]:
        """Return the features in float64, and their classes, of the classes that have enough samples here."""
        y, least = self.data.y, self.hyper.least_samples
        counts = y.bincount(minlength=self.model.classes)
        taken = sent_classes(counts, least, self.number)[y]
        if not bool(taken.any()):
            if not len(y):
                log.warning("round %d: this device has no training sample, so it takes no part", self.number)
            return self.data.x.new_zeros(0, self.model.embedding_size, dtype=torch.float64), y[:0]
        z = embed(self.model, self.data.x[taken])
        return scaled(z.double(), self.hyper), y[taken]

    def rule(self) -> nn.Module:
        """Return the head that the server has solved; before the first head, return the network's own head."""
        return self.head if self.head is not None else self.model.head

    def state(self) -> Payload:
        return {}

    def restore(self, state: Payload) -> None:
        """Do nothing, because the network never changes and the head comes again with the last evaluation."""


def counted_samples(reply: Reply) -> int:
    """Return how many samples of a device are counted in the sums."""
    return min(int(reply.payload["counts"].sum()), reply.examples)


def scaled(z: Tensor, hyper: StatisticsHyper) -> Tensor:
    return same_norm(z) if hyper.normalised else z


def with_stated_counts(replies: Iterable[Reply], cohort: Sequence[Member], least: int) -> Iterator[Reply]:
    """Add to each answer the arrays `labels` and `counts`, which its device stated when it joined.

    Classes with fewer than `least` samples are left out, as the devices leave them out of their statistics.
    """
    stated = {member.device: member for member in cohort}
    for reply in replies:
        place = next(iter(reply.payload.values())).device
        counts = torch.tensor(stated[reply.device].counts, dtype=torch.int64, device=place)
        held = counts >= max(1, least)
        arrays = {"labels": held.nonzero().squeeze(1), "counts": counts[held]}
        yield replace(reply, payload={**reply.payload, **arrays})


def mean_rows(z: Tensor, y: Tensor, model: Net) -> dict[str, Tensor]:
    """Return class means of features as a device sends them, with labels and counts; see `mean_wants`."""
    means, counts = class_means(z, y, model.classes)
    return held_rows(means.to(next(model.parameters()).dtype), counts)


def mean_wants(model: Net, hyper: StatisticsHyper, rows: int = 1) -> Mapping[str, TensorSpec]:
    """Return the specifications of `mean_rows`, with at most this number of rows for each class on average."""
    found = held_row_wants(model)
    bounded = replace(found["prototypes"], row_norm=row_norm(model, hyper))
    return {
        name: replace(spec, most=rows * model.classes)
        for name, spec in {**found, "prototypes": bounded}.items()
    }


def all_mean_rows(replies: Sequence[Reply]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means [R, D] of all devices in float64, their labels [R] and their counts [R]."""
    parts = [[reply.payload[name] for reply in replies] for name in ("prototypes", "labels", "counts")]
    means, labels, counts = map(torch.cat, parts)
    return means.double(), labels, counts


def row_norm(model: Net, hyper: StatisticsHyper) -> float:
    """Return the largest norm of a row that is a mean of features; 0, which means no limit, for raw features."""
    return ROW_ROOM * math.sqrt(model.embedding_size) if hyper.normalised else 0.0


def head_rows(rows: Tensor, known: Tensor, model: Net) -> dict[str, Tensor]:
    """Return a head [C, D or D + 1] as rows of the known classes with labels, or nothing if no class is known."""
    if not known.any():
        return {}
    dtype = next(model.parameters()).dtype
    return {"head": rows[known].to(dtype), "labels": known.nonzero().squeeze(1)}


def head_cost(sizes: Sizes, bias: bool = False) -> dict[str, int]:
    """Return the numbers of `head_rows`, which go down only in the last evaluation."""
    return {"head": sizes.rows * (sizes.D + bias), "labels": eight_bytes(sizes.rows)}


def has_head(payload: Payload) -> bool:
    """Return whether the payload has rows of a head, or their labels."""
    return "head" in payload or "labels" in payload


def head_table(payload: Payload, model: Net, bias: bool) -> tuple[Tensor, Tensor]:
    """Return the head as a table [C, D or D + 1] with a mask [C] of its classes; other classes have zero rows."""
    width = model.embedding_size + bias
    demand_arrays(payload, row_specs(model, width, rows="head"))
    rows, labels = payload["head"].detach(), payload["labels"]
    table = rows.new_zeros(model.classes, width).index_copy_(0, labels, rows)
    known = torch.zeros(model.classes, dtype=torch.bool, device=rows.device).index_fill_(0, labels, True)
    return table, known
