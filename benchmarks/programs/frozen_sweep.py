"""Run the trials of a sweep with frozen features in this process, without a broker and without messages.

`protofleet sweep` runs a federation for each trial. This program has the same accuracies, and needs a tenth of the
time. For a method that trains nothing, the answers of the devices are computed once for each draw of the images, and
the server solves the head for each value from these answers. It does so only for settings that devices do not use.
The result is `sweeps/NAME/searched.json` in the folder of the runs, in the form of the `trials.json` of
`protofleet sweep`. Start it with

    python -m benchmarks.programs.frozen_sweep experiments/sweeps/frozen-fed3r.toml --runs runs

If each device has a model of its own, `all_domains` is its accuracy on the test images of all devices, as the mean
over devices and domains. For one global model, this is the accuracy of the run. With `--alone`, the server solves a
head from the answer of each device alone, and the accuracies of these heads are in `alone.json`. A trial that is
already in the file is not run again, unless the code that decides results has changed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch

from protofleet.edge_client.evaluate import Splits, evaluate
from protofleet.edge_client.trainer.features import StoredFeatures, with_features
from protofleet.lab.api.simulated import Federation, crossed
from protofleet.lab.local.centralised import shards_of
from protofleet.lab.local.experiment import FEATURES, Experiment
from protofleet.lab.local.grid import Grid
from protofleet.lab.local.sweep_file import Wish, planned
from protofleet.methods.contract.base import ClientHalf, Member, Reply
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.torch_setup import compute_deterministically
from protofleet.methods.parts.statistics import StatisticsServer
from protofleet.protocol.coding.delta import body_of, bytes_of
from protofleet.protocol.coding.update import DecodedArrays, chance_of, encode_arrays
from protofleet.protocol.settings.reader import encode
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.messages import NOTHING, Arrays
from protofleet.runtime.installation.provenance import software

# Settings that only the server half of a method uses; the answers of devices do not depend on them.
OF_SERVER: Final = ("gamma", "lam", "metric", "penalty", "scatter", "server_lr", "shrinkage")
MOST: Final = 1 << 30  # Bytes of all stored features.
LARGEST_BUNDLE: Final = 1 << 26
SEARCHED: Final = "searched.json"
ALONE: Final = "alone.json"
Rows = Mapping[str, Splits]


@dataclass(frozen=True)
class Measured:
    """The accuracies of a trial: means over the devices."""

    validation: float
    test: float
    all_domains: float | None  # None if all devices have the same model.


def features_of(experiment: Experiment, runs: Path) -> Rows:
    """Return the data of each device, with features in place of images."""
    plan = experiment.plan
    network = json.dumps(encode(plan.network), sort_keys=True)
    stored = StoredFeatures(runs / FEATURES, MOST, network, Disk(durable=False))
    found = {}
    for name, shard in shards_of(experiment).items():
        half = plan.client_half(shard.train, name, validation=shard.validation)
        found[name] = with_features(half, shard, stored)
    return found


def half_of(plan: Plan, rows: Rows, name: str) -> ClientHalf:
    return plan.client_half(rows[name].train, name, validation=rows[name].validation)


def members_of(plan: Plan, rows: Rows) -> list[Member]:
    def counts(data: Splits) -> tuple[int, ...]:
        needed = plan.variant.needs_counts
        return tuple(data.train.y.bincount(minlength=data.classes).tolist()) if needed else ()

    return [Member(name, len(data.train.y), counts(data), data.domain) for name, data in rows.items()]


def received(plan: Plan, device: str, arrays: Arrays) -> Arrays:
    """Return the arrays of an answer as the server gets them: coded and decoded."""
    if plan.coding is None:
        return crossed(arrays)
    stages = plan.coding.up
    coded = encode_arrays(arrays, stages, NOTHING, NOTHING, chance_of(plan.seed, 1, "describe", device))
    return DecodedArrays(body_of(bytes_of(coded.arrays)), stages, None, LARGEST_BUNDLE)


class Answers:
    """The answers of all devices to a server half that only solves. Equal client halves answer only once."""

    def __init__(self) -> None:
        self._known: dict[str, list[Reply]] = {}

    def of(self, plan: Plan, rows: Rows, draw: int) -> list[Reply]:
        own = {key: value for key, value in plan.hyper.items() if key not in OF_SERVER}
        name = json.dumps([draw, own, str(plan.codec)], sort_keys=True, default=str)
        if name not in self._known:
            self._known[name] = [self._answer(plan, rows, member) for member in members_of(plan, rows)]
        return self._known[name]

    def _answer(self, plan: Plan, rows: Rows, member: Member) -> Reply:
        half, server = half_of(plan, rows, member.device), plan.server_half()
        half.begin(1)
        server.begin(1, members_of(plan, rows))
        sent = to_numpy(half.run(next(server.round())))
        payload = to_torch(received(plan, member.device, sent))
        return Reply(member.device, member.examples, payload)


def solved(plan: Plan, rows: Rows, replies: Sequence[Reply], alone: bool) -> Measured:
    """Return the accuracies of the head that the server solves from all answers, or of a head for each answer."""
    if not alone:
        return accuracies(dict.fromkeys(rows, head_of(plan, rows, replies)), rows, "global", own=False)
    heads = {reply.device: head_of(plan, rows, [reply]) for reply in replies}
    return accuracies(heads, rows, "global", own=True)


def head_of(plan: Plan, rows: Rows, replies: Sequence[Reply]) -> ClientHalf:
    """Return a client half that has received the head of these answers."""
    server, senders = plan.server_half(), {reply.device for reply in replies}
    server.fleet = len(senders)
    server.begin(1, [member for member in members_of(plan, rows) if member.device in senders])
    asking = server.round()
    next(asking)
    with contextlib.suppress(StopIteration):
        asking.send(list(replies))
    half = half_of(plan, rows, next(iter(rows)))
    half.receive(to_torch(crossed(to_numpy(server.payload()))))
    return half


def trained(plan: Plan, rows: Rows) -> Measured:
    done = Federation(plan, rows, reboots=False).run()  # type: ignore[arg-type]  # Features replace the images.
    view = plan.variant.reports
    return accuracies(done.clients, rows, view, own=view != "global")


def accuracies(halves: Mapping[str, ClientHalf], rows: Rows, view: str, *, own: bool) -> Measured:
    """Return the mean accuracies. `own` means that each device has a model of its own."""
    found = [evaluate(half, rows[name], view) for name, half in halves.items()]
    test, validation = (
        fmean(one[f"accuracy.{split}.{view}"] for one in found) for split in ("test", "validation")
    )
    if not own:
        return Measured(validation, test, None)
    every = [
        evaluate(half, data, view)[f"accuracy.test.{view}"]
        for half in halves.values()
        for data in rows.values()
    ]
    return Measured(validation, test, fmean(every))


class Trials:
    """The trials of all sweeps that were given. Features and answers are computed once for all of them."""

    def __init__(self, runs: Path, alone: bool = False) -> None:
        self._runs, self._alone = runs, alone
        self._rows: dict[int, Rows] = {}
        self._answers = Answers()

    def measured(self, experiment: Experiment) -> Measured:
        plan, draw = experiment.plan, experiment.data.seed
        if draw not in self._rows:
            self._rows[draw] = features_of(experiment, self._runs)
        rows = self._rows[draw]
        if not issubclass(plan.load().Server, StatisticsServer):
            return trained(plan, rows)
        return solved(plan, rows, self._answers.of(plan, rows, draw), self._alone)

    def table(self, grid: Grid, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the trials of a grid; trials of an earlier table of the same code are taken from it."""
        axes, versions = [axis.key for axis in grid.axes], software()
        same = known is not None and known.get("versions", {}).get("sources") == versions["sources"]
        before = known["trials"] if known is not None and same else []
        done = {tuple(one["runs"]): one for one in before}
        trials = []
        for point in grid.points:
            if (ready := done.get(tuple(one.name for one in point.trials))) is not None:
                trials.append(ready)
                continue
            found = [self.measured(trial) for trial in point.trials]
            row: dict[str, Any] = {
                "settings": dict(zip(axes, point.values, strict=True)), "runs": [one.name for one in point.trials],
                "validation": [one.validation for one in found], "test": [one.test for one in found],
            }  # fmt: skip
            every = [one.all_domains for one in found if one.all_domains is not None]
            trials.append({**row, "all_domains": every} if every else row)
            print(
                f"{grid.words(point)}: {100 * found[0].validation:.1f}, {100 * found[0].test:.1f}", flush=True
            )
        keys = {axis.key: list(axis.values) for axis in grid.axes}
        return {"experiment": grid.name, "versions": versions, "grid": keys, "trials": trials}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)  # As a device of a run, so the bits are the same.
    compute_deterministically(strict=False)
    trials = Trials(options.runs, options.alone)
    for path in options.sweeps:
        grid, _ = planned(path, Wish())
        file = options.runs / "sweeps" / grid.name / (ALONE if options.alone else SEARCHED)
        file.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        file.write_text(json.dumps(trials.table(grid, known), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
