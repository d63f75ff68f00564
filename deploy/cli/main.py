"""The `protofleet` command: one sub-command a job. A user's mistake is one line and an exit code.

Exit codes: 0 done; 1 the run failed or was stopped; 2 the command or its settings cannot be used;
4 the run has diverged: there is no state that it could go on from.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from protofleet.deploy.cli.flags import Parser
from protofleet.deploy.cli.version import software
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.plain import plain
from protofleet.runtime.children import end_with_parent
from protofleet.runtime.logs import end_plainly, log_plainly

# What a person may see; anything else that escapes is our own fault and keeps its traceback.
FAILED, MISUSED = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    end_with_parent()
    try:
        options = parser().parse_args(arguments)
        log_plainly(sys.stderr, logging.DEBUG if options.verbose else logging.INFO)
        code: int = options.command(options)
    except KeyboardInterrupt:
        print("protofleet: stopped", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except SettingsError as error:
        return told(error, MISUSED)
    except Exception as error:
        from protofleet.deploy.exit_codes import exit_code

        if (known := exit_code(error)) is None:
            raise
        return told(error, known)
    return code


def leave(code: int) -> NoReturn:
    """End this process with this code, whatever its threads are at.

    A thread that computes when the interpreter is taken apart is unwound through C++ that does not allow it: the
    process then aborts, with a core dump and code 134, after all that it had to do was done in good order.
    """
    if not any(thread.daemon for thread in threading.enumerate()):
        sys.exit(code)
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def told(error: Exception, code: int) -> int:
    print("\n".join(map(plain, f"protofleet: {error}".splitlines())), file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    from protofleet.deploy.cli import commands

    top = Parser(prog="protofleet", description="Federated learning for fleets over MQTT.")
    top.add_argument("--version", action="version", version=f"protofleet {software()}")
    top.add_argument("-v", "--verbose", action="store_true", help="say more")
    jobs = top.add_subparsers(required=True, metavar="COMMAND", title="commands")
    commands.add_all(jobs)
    return top


def program() -> NoReturn:
    """What a shell starts. `main` is for whoever calls a command from Python, and goes on afterwards."""
    end_plainly()
    try:
        code = main()
    except Exception:  # noqa: BLE001 - our own fault: it is seen, and no core dump follows
        sys.excepthook(*sys.exc_info())
        code = FAILED
    leave(code)


if __name__ == "__main__":
    program()
