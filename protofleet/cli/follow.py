"""Implement `protofleet follow`: print a line for each round of a run until the run is over."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from protofleet.cli.operate import ask
from protofleet.cli.operator_option import Ask, add_operator_option, name_of, through_broker
from protofleet.cli.queue_socket import has_queue
from protofleet.cli.run_end import end_of_run
from protofleet.protocol.user_error import BY_SIGNAL, FAILED
from protofleet.runtime.command.arguments import Subparsers

EVERY_SECONDS: Final = 0.5
EVERY_SECONDS_AWAY: Final = 3.0  # Each question through the broker needs a connection.
# Number of questions without an answer after which a coordinator that ends with its run is taken to have ended.
MOST_FAILURES: Final = 40


def add_follow(commands: Subparsers) -> None:
    command = commands.add_parser(
        "follow", help="print a line for each round of a run, until the run is over"
    )
    command.add_argument("run", type=Path, help="folder of the run, for example runs/demo")
    add_operator_option(command)
    command.set_defaults(command=follow)


def follow(options: argparse.Namespace) -> int:
    """Follow a run, also over restarts of its coordinator. The exit code is 0 if the run has finished."""
    try:
        if options.operator is not None and (code := _follow_news(options)) is not None:
            return code
        return _ask_again_and_again(options)
    except KeyboardInterrupt:
        return BY_SIGNAL + signal.SIGINT  # The run goes on.


def _follow_news(options: argparse.Namespace) -> int | None:
    """Follow a run through the broker; return None if another process with the same keys follows a run."""
    from protofleet.federation.remote.follower import follow_run
    from protofleet.federation.remote.settings import load_operator_settings
    from protofleet.protocol.wire.printable import printable

    name = name_of(options.run)
    settings = load_operator_settings(options.operator)
    state = follow_run(
        settings, name, lambda line: print(f"{name}: {printable(line)}", flush=True), words_of_state
    )
    return None if state is None else 0 if state == "finished" else FAILED


def _ask_again_and_again(options: argparse.Namespace) -> int:
    run, send, said = options.run.absolute(), through_broker(options), ""
    # Through the broker, only the number of the round is known.
    rounds = None if send else NewRounds(run / "rounds.jsonl")
    states = StatesAway(send, run.name) if send else StatesHere(options.run)
    while True:
        state = states.next()
        if state["verdict"] in ("refused", "denied"):
            print(f"{run.name}: {state['words']}", flush=True)
            return FAILED
        for record in rounds.read() if rounds else ():
            print(f"{run.name}: {words_of_round(record)}", flush=True)
        words = state["words"] or words_of_state(state)
        if send and state.get("round"):
            words += f", round {state['round']} of {state['rounds']}"
        if words != said:
            print(f"{run.name}: {words}", flush=True)
        said = words
        if state.get("over"):
            return 0 if state["state"] == "finished" else FAILED
        time.sleep(EVERY_SECONDS_AWAY if send else EVERY_SECONDS)


class StatesAway:
    """The states of a run, from a coordinator behind a broker."""

    def __init__(self, send: Ask, run: str) -> None:
        self._send, self._run = send, run
        self._has_answered, self._ends_with_run, self._failures = False, False, 0

    def next(self) -> dict[str, Any]:
        """Return the state of the run, or words if nobody answers."""
        from protofleet.protocol.transport.address import BrokerError
        from protofleet.runtime.command.errors import RunError

        try:
            state = self._send({"verb": "show", "run": self._run})
        except (RunError, BrokerError) as error:
            # The first question shows whether the settings of the operator can be used.
            if not self._has_answered:
                raise
            self._failures += isinstance(error, RunError)
            if self._ends_with_run and self._failures >= MOST_FAILURES:
                from protofleet.federation.remote.follower import ENDS_WITH_RUN

                raise RunError(f"nobody has answered {self._failures} times; {ENDS_WITH_RUN}") from None
            return {"verdict": "unknown", "words": f"{error}; waiting for it"}
        self._has_answered, self._failures = True, 0
        self._ends_with_run = bool(state.get("only_run"))
        return state


class StatesHere:
    """The states of a run, from the coordinator on this machine or from the folder of the run."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def next(self) -> dict[str, Any]:
        """Return the state of the run, or words if nobody answers and the run is not over."""
        from protofleet.runtime.command.errors import RunError

        try:
            found = ask(self._run, {"verb": "show", "reason": ""})
        except RunError as error:
            found = {"verdict": "unknown", "words": f"{error}; waiting for it"}
        # A coordinator whose file names the run ends with the run. A run of a queue may be submitted again.
        if found["verdict"] != "unknown" or has_queue(self._run.absolute().parent):
            return found
        if (end := end_of_run(self._run)) is None:
            return found
        state, reason = end
        return {"verdict": "done", "words": "", "state": state, "reason": reason, "over": True}


class NewRounds:
    """The rounds that were added to a file since it was read last."""

    def __init__(self, path: Path) -> None:
        self._path, self._size, self._last = path, 0, 0

    def read(self) -> Iterator[Mapping[str, Any]]:
        from protofleet.coordinator.observe.rounds_file import read_rounds

        size = self._path.stat().st_size if self._path.exists() else 0
        if size == self._size:
            return
        self._size = size
        for record in read_rounds(self._path):
            if record["round"] > self._last:
                self._last = record["round"]
                yield record


def words_of_state(state: Mapping[str, Any]) -> str:
    return f"{state['state']}: {state['reason']}" if state["reason"] else str(state["state"])


def words_of_round(record: Mapping[str, Any]) -> str:
    asked = {device for phase in record["phases"] for device in phase["asked"]}
    by_view = record["accuracy"]
    view = "global" if "global" in by_view else next(iter(by_view), "")
    by_domain = by_view.get(view) or {}
    accuracy = f", accuracy {fmean(by_domain.values()):.1%} ({view})" if by_domain else ""
    name = f"round {record['round']}" if record["kind"] == "training" else "final evaluation"
    return (
        f"{name}: {len(record['participants'])} of {len(asked)} answered{accuracy}, {record['seconds']:.1f} s"
    )
