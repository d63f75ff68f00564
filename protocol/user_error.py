"""Define the exit codes of all commands, and the base of the errors that a user or operator can correct."""

from __future__ import annotations

from typing import Final

FAILED: Final = 1
MISUSED: Final = 2  # Exit code if the command line or its settings have a mistake.
OUTRANKED: Final = 3  # Exit code if another process is the coordinator of the federation.
DIVERGED: Final = 4
BUDGET_SPENT: Final = 5  # Exit code if budgets have ended the run before its last round.
BY_SIGNAL: Final = 128  # The exit code is this number plus the number of the signal.


class UserError(Exception):
    """An error that a user or operator can correct. Its message has the reason and the way out.

    A command that such an error ends prints the message, and no traceback. All other exceptions are bugs of
    protofleet, except some errors of the operating system (runtime/command/exit_codes.py).
    """

    exit_code = FAILED
