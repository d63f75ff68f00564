"""`python -m tests.walk [METHOD]` prints the path of a tensor through the files, from training to the server half.

One coordinator and one device run in one process, on simulated time and over a simulated broker. In round 2
sys.setprofile counts the calls, from the moment when the device's half enters `run` (the training of an answer) until
the server half's `round` is resumed with that answer.

- A file is entered when one of its functions is called, a generator is resumed, or the body of the module runs. Only
  files of ours count. Libraries do not count, and neither do the files of the simulated network (lab/simulation),
  which replace paho and a broker.
- A hop is a call whose caller is in another file of ours. A call through a library (a callback) is a hop from the
  file that called the library; a call from the simulated network is a hop too.
- Training hops between a method, its network and the optimizer once for each batch (six batches here). The number of
  different hops counts each pair of files once, so it does not depend on the number of batches.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from protofleet.methods.contract.catalog import names
from tests.rooms import PACKAGES, ROOT
from tests.support.small_federation import POLICY, NetworkConditions, Simulation, plan, shard

NETWORK = {str(Path(inspect.getfile(one)).relative_to(ROOT)) for one in (Simulation, NetworkConditions)}
ROUND = 2  # In round 1, modules are still being imported.


@dataclass
class Walk:
    """A profile function for sys.setprofile that counts calls in `entered` and `hops`."""

    method: str
    entered: Counter[str] = field(default_factory=Counter)
    hops: Counter[tuple[str, str]] = field(default_factory=Counter)
    begun: bool = False
    over: bool = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or self.over or not (here := ours(frame)):
            return
        if here == f"methods/{self.method}.py":
            self.begun = self.begun or frame.f_code.co_name == "run"
            self.over = self.begun and frame.f_code.co_name == "round"
        if self.begun:
            self.count(here, frame)

    def count(self, here: str, frame: FrameType) -> None:
        if here in NETWORK:
            return
        back = caller(frame)
        if back != here:
            self.entered[here] += 1
            self.hops[back, here] += 1


def caller(frame: FrameType) -> str:
    """Return the file of ours from which a call came, or "the network"."""
    back = frame.f_back
    while back is not None and not ours(back):
        back = back.f_back
    here = ours(back) if back else ""
    return "the network" if not here or here in NETWORK else here


def ours(frame: FrameType) -> str:
    """Return the path of the frame's file in the repository, or "" if the file is not in our packages."""
    name = frame.f_code.co_filename
    short = name.removeprefix(f"{ROOT}/")
    return short if short != name and short.split("/")[0] in PACKAGES else ""


def walked(method: str) -> Walk:
    alone = replace(POLICY, rounds=ROUND, quorum=1, cohort=1)
    walk = Walk(method)
    with tempfile.TemporaryDirectory() as folder:
        run = Simulation(plan(method, ROUND), {"device-0": shard(0)}, alone, Path(folder))
        run.run(until=lambda: run.service.run.machine.round == ROUND)
        sys.setprofile(walk)
        try:
            run.run(until=lambda: walk.over)
        finally:
            sys.setprofile(None)
    assert walk.over, f"the server half of {method} got no answer in round {ROUND}"
    return walk


def main(method: str = "fedavg") -> None:
    walk = walked(method)
    for name, times in sorted(walk.entered.items()):
        print(f"{times:6}  {name}")
    rooms = {name.rpartition("/")[0] for name in walk.entered}
    across = sum(n for (a, b), n in walk.hops.items() if a.rpartition("/")[0] != b.rpartition("/")[0])
    print(
        f"{method}: {len(walk.entered)} files of {len(rooms)} rooms, {sum(walk.hops.values())} hops between files,"
    )
    print(f"{len(walk.hops)} different ones; {across} of the hops go from one room to another")


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m tests.walk")
    options.add_argument("method", nargs="?", default="fedavg", choices=names())
    main(options.parse_args().method)
