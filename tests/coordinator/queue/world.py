"""A queue on a disk, a process that may be killed before each durable step, and an operator who repeats commands."""

from __future__ import annotations

from protofleet.coordinator.queue.commands import QueueCommand, Submission, decide
from protofleet.coordinator.queue.queue_file import QueueFile
from protofleet.coordinator.queue.settle import Change, Conduct, Tell, settle
from protofleet.coordinator.queue.states import FINAL, RunFact, active_runs
from protofleet.protocol.storage.disk import Disk

FAILS = "its plan cannot be built"


class KilledError(BaseException):
    """The process is killed, and its memory is lost."""


class KillingDisk(Disk):
    """A disk whose process is killed before some of the durable steps."""

    def __init__(self, die_before=(), steps=("commit",)):
        super().__init__(durable=False)
        self.die_before, self.steps, self.points = set(die_before), steps, 0

    def before_step(self, step, what):
        if step in self.steps:
            self.passing()

    def passing(self):
        self.points += 1
        if self.points in self.die_before:
            raise KilledError


class World:
    """The folders of runs survive a kill: `spools` holds how far each run is, and `disk` the queue."""

    def __init__(self, folder, die_before=(), steps=("commit",), rounds=3, slots=1):
        self.folder, self.rounds, self.slots, self.spools = folder, rounds, slots, {}
        self.disk, self.starts, self.wall = KillingDisk(die_before, steps), 0, 1_790_000_000
        self.told, self.queue, self.facts = {}, None, {}
        self.boot()

    def boot(self):
        """Start the process; start it again if it is killed while it starts."""
        while True:
            self.starts += 1
            self.facts = {}
            if self.queue is not None:
                self.queue.close()
                self.queue = None
            try:
                self.queue = QueueFile(self.folder, "lab", lambda: self.wall, self.disk)
                return self.settle()
            except KilledError:
                continue

    def alive(self, act):
        """Let the process act; start it again if it is killed."""
        try:
            return act()
        except KilledError:
            self.boot()
            return None

    # -- the coordinator, as QueueConductor does it

    def settle(self):
        while step := settle(self.queue.runs, self.facts, self.slots):
            match step:
                case Change():
                    self.queue.change(step)
                    if step.closed:
                        self.facts.pop(step.run)
                case Conduct(name):
                    spool = self.spools.setdefault(name, {"round": 1, "paused": "", "end": ""})
                    spool["rounds"] = self.queue.runs[name].rounds
                    self.facts[name] = self.fact(name)
                case Tell(name, verb, words):
                    self.disk.passing()
                    self.spools[name] |= {"paused": words} if verb == "pause" else {"paused": ""}
                    if verb == "stop":
                        self.spools[name]["end"] = "stopped"
                    self.facts[name] = self.fact(name)

    def fact(self, name, closed=False):
        spool = self.spools[name]
        if name == "bad":
            return RunFact("failed", FAILS, True)
        if spool["end"]:
            return RunFact(spool["end"], "all rounds are done", closed)
        return RunFact("paused" if spool["paused"] else "running", spool["paused"])

    def turn(self):
        """Let each active run do a round, or end."""
        for name in [run.name for run in active_runs(self.queue.runs) if run.name in self.facts]:
            self.do_round(name)

    def do_round(self, name):
        spool, is_over = self.spools[name], self.facts[name].state in FINAL
        if not is_over and not spool["paused"]:
            self.disk.passing()
            spool["round"] += 1
            spool["end"] = "finished" if spool["round"] > spool["rounds"] else ""
        self.facts[name] = self.fact(name, closed=is_over)
        self.settle()

    def execute(self, number, verb, run, rounds=0, **more):
        """Carry out a command as QueueExecutor does, and note the result that the operator gets."""
        command = QueueCommand(bytes([number]) * 16, "local:ann", verb, run, rounds=rounds)
        known = self.queue.result_of(command)
        if known is None:
            submission = Submission("rounds = 3", self.rounds, **more) if verb == "submit" else None
            known = decide(command, self.queue.runs, self.wall, submission)
            self.queue.save(command, known)
            if verb == "extend" and run in self.facts:
                self.disk.passing()
                self.spools[run]["rounds"] = self.queue.runs[run].rounds
            self.settle()
        self.disk.passing()  # The result leaves the process.
        self.told[number] = known.verdict

    # -- the operator

    def play(self, script):
        """Give each command when its condition holds, and repeat it until the operator gets the result."""
        for number, (wanted, verb, run, more) in enumerate(script):
            self.wait_for(wanted)
            while number not in self.told:
                self.alive(lambda n=number, v=verb, r=run, m=more: self.execute(n, v, r, **m))
        return self

    def wait_for(self, wanted):
        for _ in range(100):
            if wanted.items() <= self.states().items():
                return
            self.alive(self.turn)
        raise AssertionError(f"waited for {wanted}, but {self.states()}")

    def states(self):
        return {name: run.state for name, run in self.queue.runs.items()}

    def essence(self):
        """Return the results that must not depend on a kill, so not the round in which a command reached a run."""
        rows = {
            name: (run.state, run.reason, run.closed, run.rounds, run.origin_run)
            for name, run in self.queue.runs.items()
        }
        return rows, self.told, {name: (spool["end"], spool["rounds"]) for name, spool in self.spools.items()}
