"""Does torch work, and does it still? Signs of life of a training, whichever method it is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook


def on_every_step(call: Callable[[], None]) -> None:
    """`call` is made, on the thread that computes, after each step of any optimizer and each pass through any module.

    It holds for the whole process, so it belongs into a program's start and nowhere else.
    """
    register_optimizer_step_post_hook(lambda *_: call())
    register_module_forward_hook(lambda *_: call())


def tensors_work(place: torch.device | str = "cpu") -> str:
    """What is wrong with a small computation there, or nothing."""
    try:
        total = torch.arange(8.0, device=place).square().sum().item()
    except (RuntimeError, AssertionError) as error:  # a GPU that has gone, or has no memory left; none at all
        return f"torch cannot compute on {place} ({str(error).splitlines()[0]})"
    return "" if total == 140.0 else f"torch computes wrongly on {place}: 0 + 1 + 4 + ... + 49 is {total}"
