"""The processes of a run end with it, however it ends: an orphan would go on writing where the next run goes on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

PARENT: Final = "PROTOFLEET_PARENT"  # in the environment of a run's children: who they end with
PR_SET_PDEATHSIG: Final = 1


def of_this_process() -> dict[str, str]:
    """An environment for children that end with this process."""
    return {**os.environ, PARENT: str(os.getpid())}


def end_with_parent(environment: Mapping[str, str] = os.environ) -> None:
    """Called by a child as its first act. Linux alone can promise it; elsewhere a killed run leaves its children."""
    parent = environment.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it was gone before that was said
        os.kill(os.getpid(), signal.SIGKILL)
