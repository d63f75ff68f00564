"""Implement `protofleet show`, `pause`, `resume`, `extend` and `stop`, for a run on this machine or behind a broker.

The coordinator conducts only this run, or it conducts a queue of runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from protofleet.cli.operator_option import add_operator_option, name_of, through_broker
from protofleet.cli.queue_socket import ask_queue, ask_socket, has_queue
from protofleet.cli.run_end import end_of_run
from protofleet.protocol.user_error import FAILED
from protofleet.runtime.command.arguments import REVISION, ROUND, Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options

HELP: Final = {
    "show": "show the state of a running run, and the commands that it got",
    "pause": "pause a run at the end of its open round; its devices wait",
    "resume": "let a paused run go on",
    "extend": "set the number of rounds of a run that is not over",
    "stop": "end a run for ever, and keep its files",
}


def add_operate(commands: Subparsers) -> None:
    for verb, words in HELP.items():
        command = commands.add_parser(verb, help=words)
        command.add_argument("run", type=Path, help="folder of the run, for example runs/demo")
        if verb == "extend":
            command.add_argument(
                "--rounds",
                type=ROUND,
                required=True,
                help="number of all rounds of the run, not of further rounds",
            )
        if verb == "resume":
            command.add_argument(
                "--new-generation",
                action="store_true",
                help="go on behind the devices of a folder that came back from a backup: the run has a new name on "
                "the wire, and the devices forget what they have answered",
            )
            command.add_argument(
                "--keep-halves",
                action="store_true",
                help="with --new-generation: let devices begin with the state that they have, where they can",
            )
        if verb != "show":
            command.add_argument("--reason", default="", help="words for the log and for `protofleet show`")
            command.add_argument(
                "--revision", type=REVISION, metavar="N",
                help="do nothing if the run has another revision than the one that `protofleet show` has shown",
            )  # fmt: skip
        add_operator_option(command)
        add_listing_options(command)
        command.set_defaults(command=_command(verb))


def _command(verb: str) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        listing = Listing.of(options)
        args = _args_of(verb, options)
        said: dict[str, Any] = {"verb": verb, "reason": getattr(options, "reason", "")}
        said |= {"args": args} if args else {}
        if (revision := getattr(options, "revision", None)) is not None:
            said["rev"] = revision
        if send := through_broker(options):
            response = send({"run": name_of(options.run), **said})
        else:
            response = ask(options.run, said)
        done = response["verdict"] == "done"
        for line in (
            lines_of(response) if verb == "show" and done else [f"{options.run}: {response['words']}"]
        ):
            listing.line(line, wrong=not done)
        listing.end(response)
        return 0 if done else FAILED

    return run


def _args_of(verb: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a command; there are none if an earlier coordinator can carry it out."""
    from protofleet.protocol.settings.reader import SettingsError

    if verb == "extend":
        return {"rounds": options.rounds}
    if verb == "resume" and options.keep_halves and not options.new_generation:
        raise SettingsError("--keep-halves is only for a new generation; add --new-generation")
    if verb == "resume" and options.new_generation:
        return {"new_generation": True, "keep_halves": options.keep_halves}
    return {}


def ask(run: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request without the name of its run to the coordinator of the run, and return its response."""
    from protofleet.protocol.settings.reader import SettingsError
    from protofleet.runtime.command.errors import RunError
    from protofleet.runtime.control_socket import CONTROL_SOCKET

    run = run.absolute()
    folder = run / "coordinator"
    if has_queue(run.parent) and not (folder / CONTROL_SOCKET).exists():
        return ask_queue(run.parent, {"run": run.name, **request})
    if not folder.is_dir():
        raise SettingsError(
            f"{run} is no folder of a run: there is no {folder}; name a run such as runs/demo"
        )
    try:
        return ask_socket(folder, request, f"no coordinator of {run}", f"protofleet show {run}")
    except RunError as error:
        if (end := end_of_run(run)) is None:
            raise
        state, reason = end
        words = f"{state}: {reason}" if reason else state
        raise RunError(
            f"{run} is over ({words}), and its coordinator has ended; see {run}/report.html"
        ) from error


def lines_of(state: dict[str, Any]) -> list[str]:
    """Return the lines of `protofleet show`."""
    reason = f": {state['reason']}" if state["reason"] else ""
    lines = [f"{state['run']} in {state['federation']} is {state['state']}{reason}"]
    if origin := state.get("origin"):
        lines.append(f"it starts with the state of {origin['run']} after round {origin['round']}")
    if "revision" in state:
        lines.append(f"revision {state['revision']}")
    if (generation := state.get("generation", 1)) > 1:
        lines.append(f"it went on behind its devices; this is generation {generation}")
    if "round" in state:  # A run that waits in a queue is in no round.
        where = f"round {state['round']} of {state['rounds']}"
        if state["phase"]:
            where += f", {state['phase']}: {state['answered']} of {state['asked']} have answered"
        lines.append(f"{where}; devices present: {state['present']}")
        if not state["connected"]:
            lines.append("the coordinator has no connection to the broker")
    return lines + [line_of_command(one) for one in state["commands"]]


def line_of_command(one: Mapping[str, Any]) -> str:
    """Return the line of an earlier command; it names the run if the command is from the log of all runs."""
    at = datetime.fromtimestamp(one["at"]).strftime("%Y-%m-%d %H:%M:%S")
    run = f" {one['run']}" if one.get("run") else ""
    return f"{at} {one['operator']} {one['verb']}{run}: {one['words']}"
