"""An operator on the coordinator's machine, who repeats each command until its result is there."""

from __future__ import annotations

import contextlib
import io
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from protofleet.cli.main import parser, perform
from protofleet.coordinator.queue.folder import queue_folder
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.control_socket import NobodyListensError, send
from tests.chaos.queue_audit import RowsCheck, Told
from tests.chaos.world import rounds_in

LOOK_SECONDS = 0.5  # Seconds between two looks at the rows of the queue.
REPEAT_SECONDS = 0.3
ANSWER_SECONDS = 3.0  # Seconds to wait for an answer. A frozen coordinator gives none.
FINAL = ("done", "refused")  # Other verdicts say that the command is to be given again.


class Operator:
    """A thread that gives commands in order, and looks at the rows of the queue between them."""

    def __init__(self, runs: Path, note: Callable[[str], None]) -> None:
        self._runs, self._note = runs, note
        self.rows: Mapping[str, Mapping[str, Any]] = {}  # The rows of the last answer.
        self.answered_at = 0.0  # The time of the last question that was answered.
        self.told: list[Told] = []
        self.check = RowsCheck()
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._live, name="operator", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def submit(self, file: Path, run: str) -> None:
        """Submit a run with the command line; a run that is there was submitted by an earlier try."""
        self._orders.put(lambda: self._submit(file, run))

    def give(self, verb: str, run: str) -> None:
        self._orders.put(lambda: self._give(verb, run))

    def _live(self) -> None:
        while not self._stopped.is_set():
            try:
                self._orders.get(timeout=LOOK_SECONDS)()
            except queue.Empty:
                self._look()

    def _submit(self, file: Path, run: str) -> None:
        before = ""
        while not self._stopped.is_set():
            said = submitted(file, run, self._runs)
            if said != before:
                self._note(f"submit {run}: {said}")
            before = said
            if f"{run} is submitted" in said or f"there is a run {run} already" in said:
                self._tell(Told("submit", run, "done"))
                return
            time.sleep(REPEAT_SECONDS)

    def _give(self, verb: str, run: str) -> None:
        name = secrets.token_hex(16)  # The same in each try, so that the command has one effect.
        self.check.giving(verb, run)
        while not self._stopped.is_set():
            answer = self._ask({"id": name, "verb": verb, "run": run, "reason": ""})
            if answer.get("verdict") in FINAL:
                self._note(f"{verb} {run}: {answer['words']}")
                self._tell(Told(verb, run, answer["verdict"]))
                return
            time.sleep(REPEAT_SECONDS)

    def _tell(self, told: Told) -> None:
        self.told.append(told)
        self.check.told(told)

    def _look(self) -> None:
        answer = self._ask({"id": secrets.token_hex(16), "verb": "runs", "run": "", "reason": ""})
        if answer.get("verdict") == "done":
            rows = {row["run"]: row for row in answer["runs"]}
            self.check.seen(rows, {run: rounds_in(self._runs / run) for run in rows})
            self.rows = rows

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the coordinator; {} if there is none."""
        now = time.monotonic()
        try:
            answer = send(queue_folder(self._runs), request, ANSWER_SECONDS)
        except NobodyListensError:
            return {}
        self.answered_at = now
        return answer


def submitted(file: Path, run: str, runs: Path) -> str:
    """Carry out `protofleet submit` in this process, and return its output or its error."""
    words = ["submit", str(file), "--name", run, "--service", str(runs)]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            perform(parser().parse_args(words))
    except (SettingsError, RunError) as error:
        return str(error)
    return out.getvalue().strip()
