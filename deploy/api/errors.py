"""What a caller may catch: all that a user can act on, with the command line's words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from protofleet.coordinator.server.diverged import DivergedError
from protofleet.deploy.errors import DIVERGED, MISUSED, RunError, StoppedError
from protofleet.deploy.exit_codes import exit_code, message
from protofleet.protocol.settings.reader import SettingsError


@contextlib.contextmanager
def public_errors() -> Iterator[None]:
    """SettingsError where the command would exit with 2, DivergedError with 4, RunError with 1; bugs as they are.

    An interrupt stays one: who waits in a notebook or a script has pressed it there.
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
