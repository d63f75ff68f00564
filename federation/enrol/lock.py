"""Let only one command at a time write in an operator's folder.

A command that has not read the latest changes cannot write, so it cannot overwrite them.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.federation.enrol.register import REGISTER
from protofleet.protocol.settings.reader import SettingsError

LOCK: Final = "lock"


class RegisterLock:
    """The optimistic lock of a register.

    A command holds the lock only while it writes. If the register has changed since the command read it, the
    command ends with an error.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._held = folder, False
        self._last_read = self._read_register()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock during the block; raise SettingsError if another command has changed the register.

        The error is raised before anything is written.
        """
        if self._held:
            yield
            return
        with (self._folder / LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._read_register() != self._last_read:
                raise SettingsError(
                    f"another command has changed {self._folder} in the meantime; nothing was written, so run your "
                    "command again"
                )
            self._held = True
            try:
                yield
            finally:
                self._held, self._last_read = False, self._read_register()

    def _read_register(self) -> bytes:
        path = self._folder / REGISTER
        return path.read_bytes() if path.exists() else b""
