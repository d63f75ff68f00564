"""The run of one seed, from its draw to its verdict."""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from protofleet.protocol.secagg.control_arrays import SumStep
from tests.simulator.federation import Federation, Parts, close_files, tally_known
from tests.simulator.nemesis import Nemesis
from tests.simulator.promises import BrokenPromise, demand
from tests.simulator.reference import check_accepted, check_device, check_server
from tests.simulator.scenario import Scenario, draw
from tests.simulator.several import SeveralRuns, draw_several
from tests.simulator.summed import MOST_OF_ATTEMPT, SummedFederation, draw_summed

AFTERWARDS = 150.0  # Seconds for the devices to hear that the run is over.


@dataclass(frozen=True)
class Verdict:
    seed: int
    trace: str
    events: int
    virtual_seconds: float
    problem: str = ""  # One line; it is empty if all promises were kept.
    details: str = ""


def run_seed(seed: int, parts: Parts | None = None, log: Callable[[str], None] | None = None) -> Verdict:
    return run_scenario(draw(seed), parts or Parts(), log)


def run_seed_of_several(seed: int) -> Verdict:
    return run_scenario(draw_several(seed))


def run_seed_of_sums(seed: int) -> Verdict:
    return run_scenario(draw_summed(seed))


def run_scenario(
    scenario: Scenario, parts: Parts = Parts(), log: Callable[[str], None] | None = None
) -> Verdict:
    torch.set_num_threads(1)
    logging.disable(logging.NOTSET if log else logging.CRITICAL)
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="simulated-", dir=shm if shm.is_dir() else None))
    with tally_known():
        kind = SeveralRuns if scenario.able else SummedFederation if scenario.summed else Federation
        federation = kind(scenario, folder, parts, log)
        problem = details = ""
        gc.disable()  # A seed is short, and a tenth of its time would go to garbage collection.
        try:
            with federation.observed():
                judge(federation)
        except (Exception, BrokenPromise) as error:  # noqa: BLE001 - what escapes our own code is looked for
            problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            details = traceback.format_exc()
        finally:
            for process in federation.processes.values():
                close_files(process)
            shutil.rmtree(folder, ignore_errors=True)
            logging.disable(logging.NOTSET)
            gc.enable()
    clock = federation.clock
    return Verdict(scenario.seed, clock.trace, clock.events, clock.now, problem, details)


def judge(f: Federation) -> None:
    """Run the federation, and check its promises."""
    s = f.scenario
    Nemesis(f).prepare()
    f.operate()
    f.clock.run(lambda: f.clock.now >= s.bad_seconds and f.finished, s.bad_seconds + s.bound)
    where = [history.saves[-1] for history in f.histories.values() if history.saves]
    stands = ", ".join(f"round {save.round}.{save.attempt}" for save in where) or "the beginning"
    demand(f.finished, f"I9: {s.bound:.0f} s after the last fault the run still stands in {stands}")
    ended = f.clock.now
    f.clock.run(lambda: not any(p.alive for p in f.processes.values()), ended + AFTERWARDS)
    check_end(f)
    for run in f.histories:
        check_run(f, run)


def check_run(f: Federation, run: str) -> None:
    """Check that a run has all its rounds, and that its results are those of an undisturbed run."""
    history, plan = f.histories[run], f.plans[run]
    ended_early = history.last_training
    rounds = (f.policies[run].rounds if ended_early is None else ended_early) + 1
    saved = [save.round for save in history.saves][-1:]
    demand(run in f.stopped or saved == [rounds + 1], "I3: the last round was never ended")
    if isinstance(f, SummedFederation):
        check_accepted(f.folder, history)
        f.check_sums()
        return
    check_server(plan, history)
    check_accepted(f.folder, history)
    for place, works in history.works.items():
        name = place.name.split("-")[0]
        check_device(plan, place, name, f.data[name], works)


def check_end(f: Federation) -> None:
    """Check I10: the files that are left on the disks are bounded."""
    for spool in f.spools:
        answers = list((spool / "updates").glob("*/*"))
        most = 2 * len(f.scenario.devices) * 2 * (len(SumStep) if f.scenario.summed else 1)
        demand(len(answers) <= most, f"I10: {len(answers)} answers are left on the coordinator's disk")
    for name in f.scenario.devices:
        files = list((f.folder / name / "objects").glob("*"))
        most = 12 + (8 if f.scenario.uplink else 0)  # A device that rounds keeps what rounding has lost.
        most += MOST_OF_ATTEMPT if f.scenario.summed else 0
        most *= len(f.histories)
        demand(len(files) <= most, f"I10: {len(files)} objects are left on {name}'s disk")
