"""Define the exceptions that a caller of the API may catch, and raise them in place of internal exceptions.

These exceptions cover every error that a user can correct. Their messages are the messages of the command
line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from protofleet.coordinator.server.diverged import DivergedError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.user_error import DIVERGED, MISUSED
from protofleet.runtime.command.errors import RunError, StoppedError
from protofleet.runtime.command.exit_codes import exit_code, message


@contextlib.contextmanager
def public_errors() -> Iterator[None]:
    """Convert the errors of the block into one exception for each exit code of the command.

    SettingsError is raised for exit code 2, DivergedError for exit code 4, and RunError for exit code 1.
    Exceptions that come from bugs are not converted. Ctrl+C stays a KeyboardInterrupt.
    """
    try:
        yield
    except StoppedError as error:
        raise KeyboardInterrupt(str(error)) from None
    except (SettingsError, RunError, DivergedError):
        raise
    except Exception as error:
        match exit_code(error):
            case None:
                raise
            case code if code == MISUSED:
                raise SettingsError(message(error)) from error
            case code if code == DIVERGED:
                raise DivergedError(message(error)) from error
        raise RunError(message(error)) from error
