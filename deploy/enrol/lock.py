"""One writer at a time in an operator's folder, and none that overwrites changes that it has not read."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.deploy.enrol.register import REGISTER
from protofleet.protocol.settings.reader import SettingsError

LOCK: Final = "lock"


class RegisterLock:
    """Optimistic: taken only to write, and refused where the register has changed since it was read."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._held = folder, False
        self._last_read = self._read_register()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """SettingsError, before anything is written, where another command has written in the meantime."""
        if self._held:
            yield
            return
        with (self._folder / LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._read_register() != self._last_read:
                raise SettingsError(
                    f"another command has changed {self._folder} in the meantime; nothing was written, run it again"
                )
            self._held = True
            try:
                yield
            finally:
                self._held, self._last_read = False, self._read_register()

    def _read_register(self) -> bytes:
        path = self._folder / REGISTER
        return path.read_bytes() if path.exists() else b""
