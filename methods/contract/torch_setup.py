"""How torch computes in our processes: the same bits every time, and by how many threads on which thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch


def compute_deterministically(*, strict: bool) -> None:
    """An operation that cannot give the same bits every time is an error where `strict`, else a warning.

    `torch.use_deterministic_algorithms` sets these flags too, and one of the compiler, for which it imports all of
    it: 800 modules, 70 MB and a second of CPU in each process. We compile nothing.
    """
    torch.set_deterministic_debug_mode("error" if strict else "warn")


def one_thread_here(threads: int) -> Callable[[], None]:
    """The calling thread computes alone from now on. What comes back gives `threads` to the thread that calls it, or,
    for 0, as many as torch took here before.

    In torch each thread has a number of its own; one that computes for the first time takes the last that any has
    set. So each thread that computes sets its own.
    """
    others = threads or torch.get_num_threads()
    torch.set_num_threads(1)
    return partial(torch.set_num_threads, others)
