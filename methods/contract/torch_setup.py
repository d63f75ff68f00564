"""Settings of torch for the processes of protofleet: the same bits every time, and the number of threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch


def compute_deterministically(*, strict: bool) -> None:
    """Make an operation that cannot give the same bits every time an error if `strict`, else a warning.

    `torch.use_deterministic_algorithms` sets these flags too. But it also sets a flag of the compiler and
    imports the whole compiler for it: 800 modules, 70 MB and a second of CPU in each process. Protofleet
    compiles nothing.
    """
    torch.set_deterministic_debug_mode("error" if strict else "warn")


def one_thread_here(threads: int) -> Callable[[], None]:
    """Let the calling thread compute with one thread from now on, and return a function for other threads.

    The function gives `threads` to the thread that calls it. If `threads` is 0, it gives the number that
    torch used here before.

    In torch each thread has a number of its own. A thread that computes for the first time takes the last
    number that any thread has set. So each thread that computes sets its own number.
    """
    others = threads or torch.get_num_threads()
    torch.set_num_threads(1)
    return partial(torch.set_num_threads, others)
