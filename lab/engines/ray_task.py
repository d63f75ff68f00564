"""Run the command of a task in a worker of Ray.

Ray sends this code to the node, so that the node's Ray needs no protofleet. Only the standard library is imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

POLL_SECONDS = 0.2
END_SECONDS = (
    3.0  # Time for a process to end after SIGTERM; then Ray kills the worker (queue_watch.GRACE_SECONDS).
)
PR_SET_PDEATHSIG = 1
# Ray writes the GPUs of a task into this variable of the worker.
GPUS = "CUDA_VISIBLE_DEVICES"


def run_task_here(
    words: Sequence[str], log: str, place: str, environment: Mapping[str, str], folder: str
) -> int:
    """Run a task in this worker."""
    import ray

    return run_task(words, log, place, ray.get_runtime_context().get_node_id(), environment, folder)


def run_task(
    words: Sequence[str], log: str, place: str, node: str, environment: Mapping[str, str], folder: str
) -> int:
    """Run a command to its end, and return its exit code. The file `place` gets the id of the node.

    The process of the command ends together with this worker. Without that, it would outlive a worker that is killed.
    """
    own, libc = os.getpid(), ctypes.CDLL(None)

    def end_with_worker() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != own:  # The worker has ended before the call of prctl.
            os._exit(1)

    around = {**environment, **{key: os.environ[key] for key in (GPUS,) if key in os.environ}}
    with open(log, "a") as out:  # noqa: PTH123 - a path of the node
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=around, start_new_session=True,
            cwd=folder if os.path.isdir(folder) else None, preexec_fn=end_with_worker,  # noqa: PTH112
        )  # fmt: skip
    try:
        Path(place).write_text(node)
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:  # Ray cancels the task.
        process.terminate()
        deadline = time.monotonic() + END_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        raise
    finally:
        process.kill()
        process.wait()
    return process.returncode
