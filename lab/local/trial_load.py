"""Load a plug-in in a child process first, because some plug-ins end the process that loads them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import NoReturn

from protofleet.methods.plugins import file
from protofleet.methods.plugins.errors import PlugInError
from protofleet.methods.plugins.file import PluginFile
from protofleet.runtime.launcher import CAN_FORK


def demand_end(source: PluginFile) -> None:
    """Raise PlugInError if loading the file ends the process, for example with `os._exit` or a crash in C.

    If this process cannot be forked, as in a notebook, nothing is checked. An exception of the file is not
    reported here, because the process that needs the file reports it.
    """
    if file.loaded(source.sha256) is not None or not CAN_FORK or threading.active_count() > 1:
        return
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        _load_and_tell(source, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        came_back = told.read() != b""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not came_back:
        raise PlugInError(
            f"{source.path} ended the process that loaded the file, {_how(code)}; raise an exception in the file "
            "instead"
        )


def _load_and_tell(source: PluginFile, writer: int) -> NoReturn:
    """Load the file in the child process. The child prints nothing, and this function never returns."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        if "torch" in sys.modules:
            # A fork copies only one thread, so torch must not wait for the parent's other threads.
            sys.modules["torch"].set_num_threads(1)
        file.module_of(source)
    finally:
        os.write(writer, b"\n")
        os._exit(0)


def _how(code: int) -> str:
    if code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with exit code {code} and without an error, as os._exit does"
