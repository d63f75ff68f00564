"""Checks, for every method, that torch works and that training still makes progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch.nn.modules.module import register_module_forward_hook

# One list for the whole process, because torch's hooks are for the whole process.
_CALLS: Final[list[Callable[[], None]]] = []


def on_progress(call: Callable[[], None]) -> None:
    """Register a function that is called at each `report_progress` and at each pass through any torch module.

    The function is called on the thread that computes. It is called for all models in the process, so register
    it only at the start of a program.
    """
    _CALLS.append(call)
    register_module_forward_hook(lambda *_: call())


def report_progress() -> None:
    """Report progress from a loop that calls no torch module.

    Every such loop must call this function if another party decides how long the loop runs. Otherwise the
    watchdog could end a process that works.
    """
    for call in _CALLS:
        call()


def tensors_work(torch_device: torch.device | str = "cpu") -> str:
    """Do a small computation on this torch device, and return its error message, or ""."""
    try:
        total = torch.arange(8.0, device=torch_device).square().sum().item()
    # The GPU has disappeared, or has no memory left, or there is no GPU.
    except (RuntimeError, AssertionError) as error:
        return f"torch cannot compute on {torch_device} ({str(error).splitlines()[0]})"
    return (
        "" if total == 140.0 else f"torch computes wrongly on {torch_device}: 0 + 1 + 4 + ... + 49 is {total}"
    )
