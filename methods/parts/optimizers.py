"""SGD and Adam as torch.optim computes them, to the bit, without what that imports.

The first optimizer of torch.optim loads torch's compiler: 75 MB and some two seconds of a core in every device,
for code that nothing here compiles. tests/methods/parts/test_optimizers.py compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from protofleet.methods.contract.base import Payload
from protofleet.methods.contract.liveness import report_progress

BETA1: Final = 0.9
BETA2: Final = 0.999
EPS: Final = 1e-8


class Optimizer:
    """Steps down the gradients of its parameters. What it keeps of each is in `buffers`, empty before its first."""

    def __init__(self, parameters: Iterable[nn.Parameter] | Iterable[Tensor]) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.buffers: list[dict[str, Tensor]] = [{} for _ in self.parameters]

    def zero_grad(self) -> None:
        for w in self.parameters:
            w.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """A parameter without a gradient took no part, and stays as it is."""
        for w, buffers in zip(self.parameters, self.buffers, strict=True):
            if w.grad is not None:
                self._update(w, w.grad, buffers)
        report_progress()

    def _update(self, w: Tensor, gradient: Tensor, buffers: dict[str, Tensor]) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        self.buffers = [{} for _ in self.parameters]

    def state(self, prefix: str) -> Payload:
        """Copies of its buffers: <prefix>.<number of the parameter>.<name>."""
        return {
            f"{prefix}.{number}.{name}": value.clone()
            for number, buffers in enumerate(self.buffers)
            for name, value in buffers.items()
        }

    def restore(self, state: Mapping[str, Tensor], prefix: str) -> None:
        """What the state holds under this prefix, and nothing else."""
        self.forget()
        for key in state:
            if key.startswith(f"{prefix}."):
                _, number, name = key.split(".")
                torch_device = self.parameters[int(number)].device
                self.buffers[int(number)][name] = state[key].clone().to(torch_device)


class SGD(Optimizer):
    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay

    def _update(self, w: Tensor, gradient: Tensor, buffers: dict[str, Tensor]) -> None:
        if self.weight_decay:
            gradient = gradient.add(w, alpha=self.weight_decay)
        if self.momentum:
            if "momentum_buffer" in buffers:
                gradient = buffers["momentum_buffer"].mul_(self.momentum).add_(gradient)
            else:
                gradient = buffers["momentum_buffer"] = gradient.clone()
        w.add_(gradient, alpha=-self.lr)


class Adam(Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter] | Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters)
        self.lr = lr

    def _update(self, w: Tensor, gradient: Tensor, buffers: dict[str, Tensor]) -> None:
        if not buffers:
            buffers |= {"step": torch.zeros(()), "exp_avg": zeros(w), "exp_avg_sq": zeros(w)}
        buffers["step"] += 1
        mean, square, step = buffers["exp_avg"], buffers["exp_avg_sq"], buffers["step"].item()
        mean.lerp_(gradient, 1 - BETA1)
        square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        root = (square.sqrt() / math.sqrt(1 - BETA2**step)).add_(EPS)
        w.addcdiv_(mean, root, value=-self.lr / (1 - BETA1**step))


def zeros(w: Tensor) -> Tensor:
    return torch.zeros_like(w, memory_format=torch.preserve_format)
