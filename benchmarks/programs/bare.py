"""The cost of training in a round, and of a plain PyTorch loop over the same data. Both run in turn in this process.

The loop is a round of federated averaging without a framework: it loads the model, trains on each device's
data, and sums the weights. The product's trainer does the same without the sum. The trainer's cost
includes everything that a process of devices adds (jobs, progress reports at each module, deadlines), but no
network and no disk.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch.nn import functional as F
from torch.nn.modules import module as torch_modules

from benchmarks.programs.member import MadeUp, made_up
from protofleet.edge_client.group.device import Process
from protofleet.edge_client.trainer.job import TRAIN, Job, local_jobs
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.wire.messages import Array

CLASSES, SIZE, WIDTH = 31, 8, 251  # With these numbers, the network has 53,002 parameters.
BATCH, LR, MOMENTUM, DECAY = 32, 0.01, 0.9, 1e-5


def measure(
    devices: int = 10, examples: int = 600, rounds: int = 6, width: int = WIDTH, epochs: int = 1
) -> dict[str, float]:
    """Return three medians over the rounds.

    The first two are the CPU time and the duration of the plain loop. The third is the CPU time of the trainer,
    divided by the CPU time of the plain loop.
    """
    torch.set_num_threads(1)
    Process("bare").heartbeats.beat("work")
    hyper = {"epochs": epochs, "batch": BATCH, "lr": LR}
    plan = Plan("fedavg", CLASSES, rounds, 1, SIZE, Network("mlp", width), hyper)
    shards = [made_up(f"device-{i}", CLASSES, SIZE, examples) for i in range(devices)]
    jobs = [job_of(plan, shard, f"device-{i}") for i, shard in enumerate(shards)]
    broadcast = to_numpy(plan.server_half().payload())
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3 * SIZE**2, width), torch.nn.ReLU(),
        torch.nn.Linear(width, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES),
    )  # fmt: skip
    bare, ours = [], []
    for number in range(rounds + 1):
        with no_hooks():
            bare.append(cost(partial(bare_round, model, shards, epochs)))
        ours.append(cost(partial(trained, broadcast, jobs, number + 1)))
    bare, ours = bare[1:], ours[1:]  # The first round takes longer, so it is left out.
    return {
        "bare cpu": statistics.median(cpu for cpu, _ in bare),
        "bare seconds": statistics.median(wall for _, wall in bare),
        "trainer over bare": statistics.median(o / b for (o, _), (b, _) in zip(ours, bare, strict=True)),
    }


def cost(work: Callable[[], None]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def job_of(plan: Plan, shard: MadeUp, name: str) -> Job:
    return local_jobs(lambda plan: plan.client_half(shard.train, name), shard)(plan)


@contextlib.contextmanager
def no_hooks() -> Iterator[None]:
    """Remove the hooks on all modules of the process during the `with` block.

    protofleet adds a hook to all modules. This hook would also slow down the plain loop.
    """
    hooks = torch_modules._global_forward_hooks
    kept = dict(hooks)
    hooks.clear()
    try:
        yield
    finally:
        hooks.update(kept)


def bare_round(model: torch.nn.Module, shards: list[MadeUp], epochs: int) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in before.items()}
    for shard in shards:
        model.load_state_dict(before)
        optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=DECAY)
        for _ in range(epochs):
            for batch in torch.split(torch.randperm(len(shard.train.y)), BATCH):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(shard.train.x[batch]), shard.train.y[batch])
                torch.autograd.backward(loss)
                optimizer.step()
        for name, value in model.state_dict().items():
            sums[name] += value
    model.load_state_dict({name: (value / len(shards)).float() for name, value in sums.items()})


def trained(broadcast: Mapping[str, Array], jobs: Sequence[Job], number: int) -> None:
    for job in jobs:
        job.run(TRAIN, number, dict(broadcast))
