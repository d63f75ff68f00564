"""Choose the boot of an operator's process, and let only one process at a time use the operator's keys.

Two connections with one name would end each other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.protocol.link.clocks import MOST_AHEAD
from protofleet.protocol.security.keyfiles import PRIVATE, write_file
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.folder_lock import held_if_free
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.control_socket import CONTROL_SOCKET

BOOT: Final = "boot"
WAIT_SECONDS: Final = 60.0  # Seconds that a command waits for the commands of other processes.
LOOK_SECONDS: Final = 0.05


@contextlib.contextmanager
def keys_in_use(folder: Path, seconds: float = WAIT_SECONDS, or_served: bool = False) -> Iterator[bool]:
    """Hold the lock of the operator's folder; wait for another process that holds it.

    Yield whether the lock is held. With `or_served`, yield False if the other process takes commands on its socket.
    """
    deadline = time.monotonic() + seconds
    while True:
        with held_if_free(folder) as is_ours:
            if is_ours:
                (folder / CONTROL_SOCKET).unlink(missing_ok=True)  # Its process was killed.
                yield True
                return
        if or_served and (folder / CONTROL_SOCKET).exists():
            yield False
            return
        if time.monotonic() > deadline:
            raise RunError(f"another command uses the keys in {folder} for more than {seconds:.0f} s; end it")
        time.sleep(LOOK_SECONDS)


def next_boot(folder: Path, clock: int, serial: int) -> int:
    """Choose, store and return a boot that is higher than all earlier boots of the keys in this folder.

    A boot that is far ahead of the clock counts only until the operator has a new statement, as at a device.
    """
    earlier, of = _stored(folder / BOOT)
    if of != serial and earlier > clock + MOST_AHEAD:
        earlier = 0
    boot = max(clock, earlier + 1)
    if boot > clock + MOST_AHEAD:
        raise SettingsError(
            f"the clock of this machine was ahead before (boot {earlier}), or it is behind now; set the clock, and "
            "install a new approval from `protofleet enrol renew`"
        )
    write_file(folder / BOOT, f"{boot} {serial}\n".encode(), PRIVATE)
    return boot


def _stored(path: Path) -> tuple[int, int]:
    try:
        boot, serial = path.read_text().split()
        return int(boot), int(serial)
    except (FileNotFoundError, ValueError):
        return 0, 0
