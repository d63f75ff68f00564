"""Let each tracker follow the run's rounds.jsonl in its own thread.

The rounds of the run do not wait for a tracker, and an error of a tracker does not end the run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from protofleet.lab.report.flat_names import round_numbers
from protofleet.lab.trackers.destinations import Destination, without_credentials
from protofleet.lab.trackers.rounds_tail import RoundsTail
from protofleet.lab.trackers.run_folder import REPORT, ROUNDS, ending_of, is_over, last_round, settings_of
from protofleet.lab.trackers.tracked_file import TakenError, TrackedFile
from protofleet.lab.trackers.tracker import Start, Tracker
from protofleet.protocol.wire.printable import printable

LOOKS_SECONDS: Final = 0.5
PATIENCE_SECONDS: Final = 30.0  # Seconds for which the command waits for the trackers after the run is over.
LONGEST_WORDS: Final = 160  # Maximum number of letters that are shown of an error message of another package.
REPORT_SECONDS: Final = 10.0
AT_ONCE: Final = 100  # Maximum number of rounds that are sent before the progress is saved.

Say = Callable[[str], None]


def say_on_stderr(words: str) -> None:
    print(f"protofleet: {words}", file=sys.stderr, flush=True)


class Follower(threading.Thread):
    """The thread that sends a run's rounds to one tracker.

    `over` is a function that returns true when the file has all rounds of the run.
    """

    def __init__(
        self, destination: Destination, run: Path, over: Callable[[], bool], say: Say, *, ours: bool = False
    ) -> None:
        """Prepare the thread. `ours` is true if this process conducts the run.

        If a run of this process ends without a result, the run was stopped, and the tracker is told about the end.
        If a run of another process has no result, the run may still go on, and the tracker is told nothing.
        """
        super().__init__(name=f"tracker {destination.kind}", daemon=True)
        self.destination, self.failed = destination, False
        self._run, self._over, self._say, self._ours = run, over, say, ours
        self._woken, self._book = threading.Event(), TrackedFile(run)
        self._progress = self._book.of(str(destination))

    @property
    def next_round(self) -> int:
        return self._progress.next_round

    @property
    def result(self) -> str:
        """Return the result as a sentence. Call this after the thread has ended."""
        if self.next_round == 1:
            return f"no round has ended yet; nothing is in {self.destination}"
        rounds = "round 1" if self.next_round == 2 else f"rounds 1 to {self.next_round - 1}"
        open_end = (
            "" if self._progress.ended else "; the run is not over, and --follow also sends its later rounds"
        )
        return f"{rounds} are in {self.destination}{open_end}"

    def wake(self) -> None:
        self._woken.set()

    def run(self) -> None:
        try:
            self._follow()
        except TakenError:
            self.failed = True
            self._say(
                f"{self.destination} is skipped here, because another command sends {self._run} there now"
            )
        except BaseException as error:  # noqa: BLE001 - the run goes on after any error of a tracker
            self.failed = True
            words = printable(without_credentials(str(error).strip().partition("\n")[0])[:LONGEST_WORDS])
            self._say(
                f"{self.destination} is left out from round {self.next_round} on ({type(error).__name__}: {words}); "
                f"protofleet track {self._run} --to {self.destination} sends the later rounds"
            )

    def _follow(self) -> None:
        with self._book.sole_use(str(self.destination)):
            # Another process may have changed the progress before this process got the lock.
            self._progress = self._book.of(str(self.destination))
            self._bring()

    def _bring(self) -> None:
        if self._progress.ended and is_over(self._run):
            return
        tracker = self.destination.open(self._run)
        try:
            self._begin(tracker)
            self._write_rounds(tracker)
            if self._ours or is_over(self._run):
                tracker.end(ending_of(self._run))
                self._note(ended=is_over(self._run))
        except BaseException:
            with contextlib.suppress(Exception):  # If closing fails too, only the first error is reported.
                tracker.close()
            raise
        tracker.close()

    def _begin(self, tracker: Tracker) -> None:
        known = self._progress
        # The run's folder may be an older copy that was restored. Then the folder has fewer rounds than the tracker.
        first = min(known.next_round, last_round(self._run) + 1)
        begun = tracker.begin(Start(self._run, settings_of(self._run), known.known_as, first))
        self._note(known_as=begun.known_as, next_round=begun.next_round, ended=False)

    def _write_rounds(self, tracker: Tracker) -> None:
        tail = RoundsTail(self._run / ROUNDS, self.next_round)
        while True:
            # `over` is called before the file is read. If lines are added between these two steps, they are still
            # read.
            over = self._over()
            while found := tail.more():
                for some in (found[i : i + AT_ONCE] for i in range(0, len(found), AT_ONCE)):
                    tracker.write([(line["round"], round_numbers(line)) for line in some])
                    self._note(next_round=some[-1]["round"] + 1)
            if over:
                return
            self._woken.wait(LOOKS_SECONDS)

    def _note(self, **changes: Any) -> None:
        self._progress = replace(self._progress, **changes)
        self._book.note(str(self.destination), self._progress)


@contextlib.contextmanager
def tracking(destinations: Sequence[Destination], run: Path, say: Say = say_on_stderr) -> Iterator[None]:
    """Send the numbers of the run to trackers while this process conducts the run.

    After the run, the trackers have some time to send the remaining rounds.
    """
    ended = threading.Event()
    followers = [Follower(one, run, ended.is_set, say, ours=True) for one in destinations]
    for follower in followers:
        follower.start()
    try:
        yield
    finally:
        ended.set()
        until = time.monotonic() + PATIENCE_SECONDS
        for follower in followers:
            follower.wake()
            follower.join(max(0.0, until - time.monotonic()))
            if follower.is_alive():
                say(
                    f"{follower.destination} has not taken round {follower.next_round} and what follows in "
                    f"{PATIENCE_SECONDS:.0f} s; protofleet track {run} --to {follower.destination} writes them"
                )


def follow(destination: Destination, run: Path, say: Say = say_on_stderr, *, to_the_end: bool) -> Follower:
    """Send the rounds that exist now. If `to_the_end` is true, also send later rounds until the run is over.

    A thread does the work, so that Ctrl+C has an effect at once.
    """
    over = WholeRun(run) if to_the_end else lambda: True
    follower = Follower(destination, run, over, say)
    follower.start()
    while follower.is_alive():
        follower.join(LOOKS_SECONDS)
    return follower


@dataclass
class WholeRun:
    """A check whether a run of another process is over.

    The report is written shortly after the summary, or not at all. The check waits some seconds for the report.
    """

    run: Path
    seen_at: float | None = None

    def __call__(self) -> bool:
        if not is_over(self.run):
            return False
        if self.seen_at is None:
            self.seen_at = time.monotonic()
        waited = time.monotonic() - self.seen_at
        return (self.run / REPORT).exists() or waited >= REPORT_SECONDS
