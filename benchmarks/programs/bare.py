"""The training of a round beside a plain PyTorch loop over the same data, round by round in turn, in this process.

The loop is a round of federated averaging without a framework: it loads the model, trains on each device's share,
sums the weights. The product's halves do the same but for the sum, with all that they add, and without a wire.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F

from benchmarks.programs.member import MadeUp, made_up
from protofleet.edge_client.trainer.job import TRAIN, work
from protofleet.methods.contract.base import Ask, ClientHalf, Payload
from protofleet.methods.contract.plan import Network, Plan

CLASSES, SIZE, WIDTH = 31, 8, 251  # 53,002 parameters
BATCH, LR, MOMENTUM, DECAY = 32, 0.01, 0.9, 1e-5


def measure(devices: int = 10, examples: int = 600, rounds: int = 6, width: int = WIDTH) -> dict[str, float]:
    """CPU and seconds of a round, medians; and the ratio of CPU in pairs."""
    torch.set_num_threads(1)
    hyper = {"epochs": 1, "batch": BATCH, "lr": LR}
    plan = Plan("fedavg", CLASSES, rounds, 1, SIZE, Network("mlp", width), hyper)
    shards = [made_up(f"device-{i}", CLASSES, SIZE, examples) for i in range(devices)]
    halves = [plan.client_half(shard.train, f"device-{i}") for i, shard in enumerate(shards)]
    broadcast = plan.server_half().payload()
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3 * SIZE**2, width), torch.nn.ReLU(),
        torch.nn.Linear(width, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES),
    )  # fmt: skip
    bare, ours = [], []
    for number in range(rounds + 1):
        bare.append(cost(partial(bare_round, model, shards)))
        ours.append(cost(partial(trained, broadcast, halves, shards, number + 1)))
    bare, ours = bare[1:], ours[1:]  # the first of each also makes ready what it needs
    return {
        "bare cpu": statistics.median(cpu for cpu, _ in bare),
        "bare seconds": statistics.median(wall for _, wall in bare),
        "halves over bare": statistics.median(o / b for (o, _), (b, _) in zip(ours, bare, strict=True)),
    }


def cost(work: Callable[[], None]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def bare_round(model: torch.nn.Module, shards: list[MadeUp]) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in before.items()}
    for shard in shards:
        model.load_state_dict(before)
        optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=DECAY)
        for batch in torch.split(torch.randperm(len(shard.train.y)), BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(shard.train.x[batch]), shard.train.y[batch])
            torch.autograd.backward(loss)
            optimizer.step()
        for name, value in model.state_dict().items():
            sums[name] += value
    model.load_state_dict({name: (value / len(shards)).float() for name, value in sums.items()})


def trained(broadcast: Payload, halves: list[ClientHalf], shards: list[MadeUp], number: int) -> None:
    for half, shard in zip(halves, shards, strict=True):
        work(half, shard, Ask(TRAIN, broadcast), number, "global")
