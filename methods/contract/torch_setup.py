"""Settings of torch for the processes of protofleet: deterministic results, and the number of threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import torch


def compute_deterministically(*, strict: bool) -> None:
    """Make torch raise an error (`strict`) or a warning for operations that can give different bits at each call.

    `torch.use_deterministic_algorithms` sets the same flags. But that function also sets a flag of torch's compiler,
    so it imports the whole compiler: 800 modules, 70 MB and a second of CPU in each process. Protofleet compiles
    nothing.
    """
    torch.set_deterministic_debug_mode("error" if strict else "warn")


def compute_as_a_device() -> None:
    """Use one thread and deterministic operations, as a device of a local run does, so that results have its bits."""
    torch.set_num_threads(1)
    compute_deterministically(strict=False)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread in the block, as a device of a local run does.

    Another number of threads gives other bits. With small networks it also costs a multiple of the CPU time, because
    the threads wait for each other in a loop.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread_here(threads: int) -> Callable[[], None]:
    """Set the calling thread's number of torch threads to 1, and return a function for other threads.

    A thread that calls the returned function sets its own number to `threads`. If `threads` is 0, it sets the number
    that was valid before this call.

    In torch each thread has its own number. A thread that sets no number uses the last number that any thread has
    set. So each thread that computes must set its own number.
    """
    others = threads or torch.get_num_threads()
    torch.set_num_threads(1)
    return partial(torch.set_num_threads, others)
