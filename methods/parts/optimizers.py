"""SGD, Adam and AdamW with the same bits as torch.optim, but without its imports.

The first optimizer of torch.optim loads torch's compiler. This takes 75 MB and about two seconds of a core in
every device, although nothing is compiled here. tests/methods/parts/test_optimizers.py compares the optimizers
here with those of torch.optim.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

from protofleet.methods.contract.base import Payload
from protofleet.methods.contract.liveness import report_progress

BETA1: Final = 0.9
BETA2: Final = 0.999
EPS: Final = 1e-8

# A parameter, its gradient, and the optimizer's buffers for it.
Part: TypeAlias = tuple[Tensor, Tensor, dict[str, Tensor]]


class Optimizer:
    """An optimizer that changes its parameters by their gradients, to make the loss smaller.

    `buffers` has the state of each parameter. It is empty before the first step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter] | Iterable[Tensor]) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.buffers: list[dict[str, Tensor]] = [{} for _ in self.parameters]

    def zero_grad(self) -> None:
        for w in self.parameters:
            w.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Do one step and remove the gradients.

        A parameter without a gradient does not change.
        """
        parts = [
            (w, w.grad, buffers)
            for w, buffers in zip(self.parameters, self.buffers, strict=True)
            if w.grad is not None
        ]
        self.zero_grad()
        if parts:
            self._update_all(_unshared(parts))
        report_progress()

    def _update_all(self, parts: list[Part]) -> None:
        """Update all parameters; an implementation may overwrite or keep the memory of each gradient."""
        raise NotImplementedError

    def forget(self) -> None:
        self.buffers = [{} for _ in self.parameters]

    def state(self, prefix: str) -> Payload:
        """Return copies of the buffers: <prefix>.<number of the parameter>.<name>."""
        return {
            f"{prefix}.{number}.{name}": value.clone()
            for number, buffers in enumerate(self.buffers)
            for name, value in buffers.items()
        }

    def restore(self, state: Mapping[str, Tensor], prefix: str) -> None:
        """Restore exactly the buffers that the state holds under this prefix."""
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

    def _update_all(self, parts: list[Part]) -> None:
        """Update all parameters with one call for each operation.

        The result has the same bits as an update of each parameter by itself. One call for
        all small parameters is faster than one call for each of them.
        """
        parameters, gradients = [w for w, _, _ in parts], [gradient for _, gradient, _ in parts]
        if self.weight_decay:
            torch._foreach_add_(gradients, parameters, alpha=self.weight_decay)
        if self.momentum:
            gradients = self._with_momentum(parts)
        torch._foreach_add_(parameters, gradients, alpha=-self.lr)

    def _with_momentum(self, parts: list[Part]) -> list[Tensor]:
        moving = [(buffers["momentum_buffer"], gradient) for _, gradient, buffers in parts if buffers]
        if moving:
            momenta, gradients = [m for m, _ in moving], [gradient for _, gradient in moving]
            torch._foreach_mul_(momenta, self.momentum)
            torch._foreach_add_(momenta, gradients)
        return [buffers.setdefault("momentum_buffer", gradient) for _, gradient, buffers in parts]


class Adam(Optimizer):
    def __init__(
        self, parameters: Iterable[nn.Parameter] | Iterable[Tensor], lr: float, beta1: float = BETA1,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters)
        self.lr, self.beta1, self.weight_decay = lr, beta1, weight_decay

    def _update_all(self, parts: list[Part]) -> None:
        while parts:  # Each gradient is freed before the buffers of the next parameter are made.
            self._update(*parts.pop(0))

    def _update(self, w: Tensor, gradient: Tensor, buffers: dict[str, Tensor]) -> None:
        if not buffers:
            buffers |= {"step": torch.zeros(()), "exp_avg": zeros(w), "exp_avg_sq": zeros(w)}
        if self.weight_decay:
            gradient.add_(w, alpha=self.weight_decay)
        buffers["step"] += 1
        mean, square, step = buffers["exp_avg"], buffers["exp_avg_sq"], buffers["step"].item()
        mean.lerp_(gradient, 1 - self.beta1)
        square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        root = (square.sqrt() / math.sqrt(1 - BETA2**step)).add_(EPS)
        w.addcdiv_(mean, root, value=-self.lr / (1 - self.beta1**step))


class AdamW(Adam):
    """Adam whose weight decay makes the parameters smaller themselves, and not the gradients larger."""

    def __init__(
        self, parameters: Iterable[nn.Parameter] | Iterable[Tensor], lr: float, weight_decay: float = 0.01
    ) -> None:
        super().__init__(parameters, lr)
        self.decay = weight_decay

    def _update(self, w: Tensor, gradient: Tensor, buffers: dict[str, Tensor]) -> None:
        w.mul_(1 - self.lr * self.decay)
        super()._update(w, gradient, buffers)


def _unshared(parts: list[Part]) -> list[Part]:
    """Return the parts with gradients that share no memory.

    autograd may give two parameters gradients in the same memory, for example w and v in w.view(-1) + v.view(-1).
    """
    memories = [memory_of(gradient) for _, gradient, _ in parts]
    if len(set(memories)) == len(memories):
        return parts
    users = Counter(memories)
    return [
        (w, gradient.clone() if users[memory] > 1 else gradient, buffers)
        for (w, gradient, buffers), memory in zip(parts, memories, strict=True)
    ]


def memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def zeros(w: Tensor) -> Tensor:
    return torch.zeros_like(w, memory_format=torch.preserve_format)
