"""A measurement of when a GPU pays: a round of FedAvg on it, in a plain loop there, and on the CPU.

The plain loop is PyTorch alone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.nn import functional as F

from protofleet.edge_client.compute import moved
from protofleet.edge_client.data.shard import Shard, Shards
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import LocalHyper
from protofleet.protocol.settings.reader import decode
from tests.gpu.runs import Run, Wanted, experiment, run_of

METHOD = "fedavg"
NETWORKS = ("mlp", "cnn23", "cnn4", "resnet10")
SAMPLE_ROUNDS = 3  # Rounds of the loop; the fastest counts, as the first includes work that happens once.


@dataclass(frozen=True)
class Row:
    """The seconds of the fastest round in each place, or None if there was none."""

    network: str
    devices: int
    there: float | None
    loop: float | None  # Seconds of training alone; a round also measures, and carries its bytes.
    cpu: float | None
    problems: list[str] = field(default_factory=list)


def row_of(network: str, wanted: Wanted, folder: Path) -> Row:
    """Run the three measurements one after the other, so that none takes the cores of another."""
    runs = {}
    for name, where in (("there", wanted), ("cpu", replace(wanted, compute="cpu"))):
        (folder / name).mkdir(parents=True)
        runs[name] = run_of(METHOD, where, folder / name, lambda: 0, network)
    loop = loop_seconds(decode(Experiment, experiment(METHOD, wanted, network)), place_of(wanted))
    problems = [f"{network}, {name}: {problem}" for name, run in runs.items() for problem in run.problems]
    there, cpu = (seconds_of(runs[name]) for name in ("there", "cpu"))
    return Row(network, wanted.devices, there, loop, cpu, problems)


def place_of(wanted: Wanted) -> torch.device:
    return torch.device(wanted.compute)


def seconds_of(run: Run) -> float | None:
    return run.answers / run.devices_per_second if run.devices_per_second else None


def loop_seconds(experiment: Experiment, place: torch.device) -> float:
    """Time the same steps without a federation: each device trains in turn, then the weights are averaged."""
    shards = [moved(Shards().load(data), place) for _, data in sorted(experiment.shards.items())]
    settings, model = experiment.plan.settings(), experiment.plan.model().to(place)
    torch.set_num_threads(1)  # As in a run; several threads would compete with other programs for a core.
    taken = []
    for _ in range(SAMPLE_ROUNDS):
        wait_for(place)
        began = time.monotonic()
        trained = [one_device(model, shard, settings) for shard in shards]
        means = [torch.stack(parts).mean(0) for parts in zip(*(m.parameters() for m in trained), strict=True)]
        with torch.no_grad():
            for weights, mean in zip(model.parameters(), means, strict=True):
                weights.copy_(mean)
        wait_for(place)
        taken.append(time.monotonic() - began)
    return min(taken)


def one_device(model: Net, shard: Shard, settings: LocalHyper) -> Net:
    own, (x, y) = copy.deepcopy(model).train(), (shard.train.x, shard.train.y)
    optimizer = torch.optim.SGD(own.parameters(), settings.lr, settings.momentum)
    for _ in range(settings.epochs):
        for batch in torch.split(torch.randperm(len(y), device=y.device), settings.batch):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(own(x[batch]), y[batch]))
            optimizer.step()
    return own


def wait_for(place: torch.device) -> None:
    """Wait for a GPU, because it works while the program goes on."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def markdown(rows: Sequence[Row]) -> str:
    lines = [
        "| network | devices | round on the GPU | plain loop there | round on the CPU | GPU / loop | GPU / CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        seconds = " | ".join(f"{s:.2f} s" if s is not None else "" for s in (row.there, row.loop, row.cpu))
        ratios = " | ".join(ratio(row.there, other) for other in (row.loop, row.cpu))
        lines.append(f"| {row.network} | {row.devices} | {seconds} | {ratios} |")
    return "\n".join(lines)


def ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}" if one is not None and other else ""


def write_table(rows: Sequence[Row], beside: Path) -> str:
    """Write the table as Markdown beside the JSON with the same figures, and return the text to show."""
    file = beside.with_suffix(".md")
    file.write_text(markdown(rows) + "\n")
    return f"{markdown(rows)}\nkept: {file}"
