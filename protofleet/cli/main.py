"""Implement the `protofleet` command. A user's mistake gives one line and an exit code.

Exit codes: 0 done; 1 the run failed or was stopped; 2 the command or its settings cannot be used;
4 the run has failed for good (for example, it has diverged): there is no state to continue from;
130, 143 a signal has ended a coordinator or a device after an orderly stop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from protofleet.protocol.user_error import BY_SIGNAL, FAILED, UserError

if TYPE_CHECKING:
    import argparse

    from protofleet.runtime.logs import Form


def parser() -> argparse.ArgumentParser:
    from protofleet.cli.parser import parser

    return parser()


def main(arguments: Sequence[str] | None = None) -> int:
    say = print_error
    try:  # The imports are in this block, because an interrupt outside this block would print a traceback.
        from protofleet.runtime.children import end_with_parent
        from protofleet.runtime.logs import set_up_logging
    except KeyboardInterrupt:
        return say("stopped", FAILED)
    end_with_parent()
    try:
        options = parser().parse_args(arguments)
        form: Form = getattr(options, "log", "text")
        set_up_logging(sys.stderr, logging.DEBUG if options.verbose else logging.INFO, form)
        say = log_error if form == "json" else print_error
        code = perform(options)
        if sys.stdout is not None:  # stdout is None if the parent process has closed it.
            # Write the output now, so that an error is reported below and not while the interpreter ends.
            sys.stdout.flush()
    except KeyboardInterrupt:
        return say("stopped", FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except UserError as error:
        return say(str(error), error.exit_code)
    except Exception as problem:
        from protofleet.runtime.command.exit_codes import exit_code, message
        from protofleet.runtime.faults import as_authors

        found = as_authors(problem) or problem
        if (exit_status := exit_code(found)) is None:
            raise  # This is a bug of this program, so the traceback is shown.
        return say(message(found), exit_status)
    return code


def perform(options: argparse.Namespace) -> int:
    """Run the command and return its exit code.

    If a plug-in raises SystemExit, raise the error of the plug-in, because the command has not done its work.
    """
    try:
        code: int = options.command(options)
    except SystemExit as leaving:
        from protofleet.runtime.faults import as_authors

        raise as_authors(leaving) or leaving from None
    return code


def exit_process(code: int) -> NoReturn:
    """End this process with this code while threads may still run.

    If a thread computes while the interpreter shuts down, Python ends the thread inside C++ code that does not allow
    this. The process then aborts with a core dump and code 134, although all its work was done.
    """
    if not any(thread.daemon for thread in threading.enumerate()):
        # If an interrupt arrives while C code runs Python source text, `python -m` ends by SIGINT, although the
        # interrupt was caught. Running other source text after the interrupt prevents this.
        exec("")
        sys.exit(code)
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):  # The reader has closed the pipe, or the stream is closed.
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def print_error(problem: str, code: int) -> int:
    from protofleet.protocol.wire.printable import printable

    print("\n".join(map(printable, f"protofleet: {problem}".splitlines())), file=sys.stderr)
    return code


def log_error(problem: str, code: int) -> int:
    """Log the error as a JSON object, because all other log lines are JSON objects too."""
    from protofleet.runtime.logs import fields

    level = logging.ERROR if 0 < code < BY_SIGNAL else logging.INFO
    logging.getLogger("protofleet").log(level, "%s", problem, extra=fields(exit_code=code))
    return code


def program() -> NoReturn:
    """Run the command for a shell, and end the process. Python code calls `main`, because `main` returns."""
    try:
        from protofleet.runtime.logs import log_uncaught_errors

        log_uncaught_errors()
        code = main()
    except KeyboardInterrupt:  # The interrupt arrived before the command has started any work.
        code = print_error("stopped", FAILED)
    except Exception:  # noqa: BLE001 - the traceback of a bug is printed, and no core dump follows
        sys.excepthook(*sys.exc_info())
        code = FAILED
    exit_process(code)


if __name__ == "__main__":
    program()
