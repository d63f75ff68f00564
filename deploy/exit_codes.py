"""Which exceptions a user or operator can act on, and their exit codes. All others are bugs of ours."""

from __future__ import annotations

from protofleet.coordinator.server.diverged import DivergedError
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.deploy.errors import DIVERGED, FAILED, MISUSED, RunError
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.state.device import TakenOverError
from protofleet.protocol.security.keyfiles import KeyFileError
from protofleet.protocol.security.statements import StatementError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import is_full, is_locked
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.transport.address import BrokerError
from protofleet.runtime.launcher import LauncherError
from protofleet.runtime.metrics_page import MetricsError


def exit_code(error: Exception) -> int | None:
    match error:
        case SettingsError() | KeyFileError() | RunMismatchError() | StatementError() | NewerFormatError():
            return MISUSED
        case DamagedError() | BrokerError() | DataError() | RunError() | MetricsError() | TakenOverError():
            return FAILED
        case LauncherError():
            return FAILED
        case DivergedError():
            return DIVERGED
        case _ if is_full(error) or is_locked(error):
            return FAILED
        case PermissionError() | IsADirectoryError() | NotADirectoryError():
            return FAILED
    return None


def message(error: Exception) -> str:
    """What is said of one that has an exit code."""
    if is_locked(error):
        return (
            f"the run's database is held by another program ({error}): end it, as a shell or a backup, or let it "
            "finish; and run it again"
        )
    if is_full(error):
        where = (error.filename or error.strerror) if isinstance(error, OSError) else error
        return f"the disk is full: {where}; make room and run it again"
    return str(error)
