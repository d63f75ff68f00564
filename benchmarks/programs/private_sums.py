"""Measure what noise for each sample costs methods that release sums over samples ([dp], unit = "sample").

For each draw of the images, the devices compute their sums once. Then each epsilon has its own noise: of each device
("local"), or one noise in the sum of all devices ("shared"). No run shares noise for samples. The program computes it
from the sum of the devices' sums, as a masked sum would give it, and the server half gets one answer for all devices.
The features are scaled to the length sqrt(D), and the clip is this length, so it changes no sample. With `--lam`, the
accuracy without noise is that of the penalty with the most right answers on the validation samples. Start it with

    python -m benchmarks.programs.private_sums experiments/digits-gram.toml --samples 240 2000 --lam 1 10 100
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.private_updates import PrivateUpdates, sums_in
from protofleet.lab.local.centralised import shards_of
from protofleet.lab.local.experiment import Experiment, read_experiment
from protofleet.methods.contract.base import ClientHalf, Member, Payload, Reply
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.private_sums import SUMS
from protofleet.methods.contract.torch_setup import compute_deterministically
from protofleet.methods.parts.local import embed
from protofleet.protocol.settings.dp import DpSettings

Sums = NDArray[np.float64]
Tested = tuple[Tensor, Tensor]  # The embeddings [N, D] of the test samples of a device, and their classes.


@dataclass(frozen=True)
class Draw:
    """The devices of one draw of the images."""

    experiment: Experiment
    shards: Mapping[str, Splits]
    tested: Sequence[Tested]
    validated: Sequence[Tested]

    @property
    def members(self) -> list[Member]:
        return [Member(name, len(one.train.y)) for name, one in self.shards.items()]

    def half(self, plan: Plan, name: str) -> ClientHalf:
        half = plan.client_half(self.shards[name].train, name)
        half.begin(1)
        return half

    def answers(self, plan: Plan) -> dict[str, Payload]:
        """Return what the client halves compute, before any noise."""
        server = plan.server_half()
        server.begin(1, self.members)
        ask = next(server.round())
        return {name: self.half(plan, name).run(ask) for name in self.shards}

    def rule(self, plan: Plan, replies: Sequence[Reply]) -> nn.Module:
        """Return the rule of the head that the server half solves from these answers."""
        server = plan.server_half()
        server.begin(1, [Member(one.device, one.examples) for one in replies])
        asking = server.round()
        next(asking)
        with contextlib.suppress(StopIteration):
            asking.send(list(replies))
        half = self.half(plan, next(iter(self.shards)))
        half.receive(server.payload())
        return half.rule()

    def accuracy(self, plan: Plan, replies: Sequence[Reply]) -> float:
        return accuracy_of(self.rule(plan, replies), self.tested)


def accuracy_of(rule: nn.Module, rows: Sequence[Tested]) -> float:
    """Return the mean over the domains of the accuracy, in percent."""
    return 100 * fmean(float((rule(z).argmax(dim=1) == y).double().mean()) for z, y in rows)


def drawn(experiment: Experiment) -> Draw:
    shards, model = shards_of(experiment), experiment.plan.model()
    model.eval()
    tested = [(embed(model, shard.test.x), shard.test.y) for shard in shards.values()]
    validated = [(embed(model, shard.validation.x), shard.validation.y) for shard in shards.values()]
    return Draw(experiment, shards, tested, validated)


def private(plan: Plan, epsilon: float, delta: float) -> Plan:
    clip = math.sqrt(plan.model().embedding_size)
    return replace(plan, dp=DpSettings("sample", epsilon, delta, clip, rounds=1))


def without_noise(draw: Draw, lams: Sequence[float]) -> float:
    plan, sizes = draw.experiment.plan, {one.device: one.examples for one in draw.members}
    replies = [Reply(name, sizes[name], arrays) for name, arrays in draw.answers(plan).items()]
    plans = [replace(plan, hyper={**plan.hyper, "lam": lam}) for lam in lams] or [plan]
    rules = [draw.rule(one, replies) for one in plans]
    return accuracy_of(max(rules, key=lambda rule: accuracy_of(rule, draw.validated)), draw.tested)


def replies_of(plan: Plan, sums: Mapping[str, Sums], sizes: Mapping[str, int]) -> list[Reply]:
    """Return the answers that the server half gets from these sums, each with its own noise."""
    updates = PrivateUpdates(plan)
    noisy = {name: updates.noisy({SUMS: one}, {}, sizes[name])[0] for name, one in sums.items()}
    return [Reply(name, sizes[name], to_torch(arrays)) for name, arrays in noisy.items()]


def with_noise(draw: Draw, plan: Plan, sums: Mapping[str, Sums], repeats: int) -> tuple[float, float]:
    """Return the accuracies with local noise and with shared noise, as means over some draws of the noise."""
    sizes = {one.device: one.examples for one in draw.members}
    local = [draw.accuracy(plan, replies_of(plan, sums, sizes)) for _ in range(repeats)]
    whole = {"all": np.sum(list(sums.values()), axis=0)}
    shared = [
        draw.accuracy(plan, replies_of(plan, whole, {"all": sum(sizes.values())})) for _ in range(repeats)
    ]
    return fmean(local), fmean(shared)


def words(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def measured(
    experiment: Experiment,
    epsilons: Sequence[float],
    delta: float,
    draws: int,
    repeats: int,
    lams: Sequence[float],
) -> Mapping[str, Sequence[float]]:
    """Return the accuracies of all draws of the images, for no noise, local noise and shared noise."""
    found: dict[str, list[float]] = {}
    for seed in range(draws):
        draw = drawn(replace(experiment, data=replace(experiment.data, seed=seed)))
        found.setdefault("no noise", []).append(without_noise(draw, lams))
        if not epsilons:
            continue
        plans = [private(draw.experiment.plan, epsilon, delta) for epsilon in epsilons]
        sums = {name: sums_in(to_numpy(one)) for name, one in draw.answers(plans[0]).items()}
        for epsilon, plan in zip(epsilons, plans, strict=True):
            for place, value in zip(("local", "shared"), with_noise(draw, plan, sums, repeats), strict=True):
                found.setdefault(f"{place} {epsilon:g}", []).append(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.private_sums", description=__doc__)
    parser.add_argument("experiment", type=Path, nargs="+")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--samples", type=int, nargs="+", default=[240], help="data.samples of each row")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[8.0, 4.0])
    parser.add_argument("--lam", type=float, nargs="+", default=[], help="values of method.lam without noise")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument(
        "--repeats", type=int, default=3, help="draws of the noise for each draw of the images"
    )
    given = parser.parse_args()
    compute_deterministically(strict=False)
    for path in given.experiment:
        # A codec that rounds would change the numbers with noise.
        experiment = replace(read_experiment(path, given.set), codec=None)
        for samples in given.samples:
            one = replace(experiment, data=replace(experiment.data, samples=samples))
            found = measured(one, given.epsilon, given.delta, given.draws, given.repeats, given.lam)
            row = {
                "file": path.name,
                "set": given.set,
                "samples": samples,
                "numbers": one.plan.model().embedding_size,
            }
            print(json.dumps({**row, **{name: words(values) for name, values in found.items()}}), flush=True)


if __name__ == "__main__":
    main()
