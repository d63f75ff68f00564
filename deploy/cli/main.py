"""The `protofleet` command. A user's mistake is one line and an exit code.

Exit codes: 0 done; 1 the run failed or was stopped; 2 the command or its settings cannot be used;
4 the run has come to nothing (it has diverged, say): there is no state to continue from;
130, 143 a signal has ended a coordinator or a device in good order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from protofleet.deploy.errors import BY_SIGNAL, FAILED, MISUSED

if TYPE_CHECKING:
    import argparse

    from protofleet.runtime.logs import Form


def parser() -> argparse.ArgumentParser:
    from protofleet.deploy.cli.parser import parser

    return parser()


def main(arguments: Sequence[str] | None = None) -> int:
    say = print_error
    try:  # what is imported out here would answer an interrupt with a traceback
        from protofleet.protocol.settings.reader import SettingsError
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
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()  # what cannot be written any more is said below, and not while the interpreter ends
    except KeyboardInterrupt:
        return say("stopped", FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except SettingsError as error:
        return say(str(error), MISUSED)
    except Exception as problem:
        from protofleet.deploy.exit_codes import exit_code, message
        from protofleet.runtime.faults import as_authors

        found = as_authors(problem) or problem
        if (exit_status := exit_code(found)) is None:
            raise  # a bug of ours keeps its traceback
        return say(message(found), exit_status)
    return code


def perform(options: argparse.Namespace) -> int:
    """What its command comes to. A plug-in that says SystemExit has not done the command's work."""
    try:
        code: int = options.command(options)
    except SystemExit as leaving:
        from protofleet.runtime.faults import as_authors

        raise as_authors(leaving) or leaving from None
    return code


def exit_process(code: int) -> NoReturn:
    """End this process with this code while threads may still run.

    A thread that computes while the interpreter shuts down is unwound through C++ that does not allow it: the process
    then aborts with a core dump and code 134, though all its work was done.
    """
    if not any(thread.daemon for thread in threading.enumerate()):
        # Where an interrupt has met text that C code runs, `python -m` ends by SIGINT though it was caught, unless
        # other text is run after it.
        exec("")
        sys.exit(code)
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):  # the reader has gone, or the stream is closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def print_error(problem: str, code: int) -> int:
    from protofleet.protocol.wire.printable import printable

    print("\n".join(map(printable, f"protofleet: {problem}".splitlines())), file=sys.stderr)
    return code


def log_error(problem: str, code: int) -> int:
    """Where all that is said are objects, the last word is one too."""
    from protofleet.runtime.logs import fields

    level = logging.ERROR if code < BY_SIGNAL else logging.INFO
    logging.getLogger("protofleet").log(level, "%s", problem, extra=fields(exit_code=code))
    return code


def program() -> NoReturn:
    """What a shell starts; it ends the process. `main` returns, for calls from Python."""
    try:
        from protofleet.runtime.logs import log_uncaught_errors

        log_uncaught_errors()
        code = main()
    except KeyboardInterrupt:  # before there was anything to stop
        code = print_error("stopped", FAILED)
    except Exception:  # noqa: BLE001 - a bug of ours: its traceback is printed, and no core dump follows
        sys.excepthook(*sys.exc_info())
        code = FAILED
    exit_process(code)


if __name__ == "__main__":
    program()
