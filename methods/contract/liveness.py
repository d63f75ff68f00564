"""Does torch work, and does a training still make progress, whichever method it is?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch.nn.modules.module import register_module_forward_hook

_CALLS: Final[list[Callable[[], None]]] = []  # of the process, as torch's own hooks are


def on_progress(call: Callable[[], None]) -> None:
    """`call` is made, on the thread that computes, at each `report_progress` and each pass through any module.

    It holds for the whole process, so it belongs into a program's start and nowhere else.
    """
    _CALLS.append(call)
    register_module_forward_hook(lambda *_: call())


def report_progress() -> None:
    """For every loop whose length others decide and that passes through no module."""
    for call in _CALLS:
        call()


def tensors_work(torch_device: torch.device | str = "cpu") -> str:
    """What is wrong with a small computation there, or nothing."""
    try:
        total = torch.arange(8.0, device=torch_device).square().sum().item()
    except (RuntimeError, AssertionError) as error:  # a GPU that has gone, or has no memory left; none at all
        return f"torch cannot compute on {torch_device} ({str(error).splitlines()[0]})"
    return (
        "" if total == 140.0 else f"torch computes wrongly on {torch_device}: 0 + 1 + 4 + ... + 49 is {total}"
    )
