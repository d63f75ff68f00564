"""A device of Flower's simulation that trains: the network, samples and steps of benchmarks/programs/bare.py."""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch.nn import functional as F

CLASSES, SIZE, WIDTH = 31, 8, 251
BATCH, LR, MOMENTUM, DECAY = 32, 0.01, 0.9, 1e-5


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3 * SIZE**2, WIDTH), torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES),
    )  # fmt: skip


@functools.lru_cache
def samples(part: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(part))
    return images, torch.arange(count) % CLASSES


def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    told = message.content["config"]
    x, y = samples(int(context.node_config["partition-id"]), int(told["examples"]))
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=DECAY)
    for _ in range(int(told["epochs"])):
        for batch in torch.split(torch.randperm(len(y)), BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(x[batch]), y[batch]))
            optimizer.step()
    answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(answer), reply_to=message)
