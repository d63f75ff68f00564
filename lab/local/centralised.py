"""Implement `protofleet centralised`, which trains on the data of all devices in one process.

The result is an upper bound for a federation. The training is **not federated**: no message is sent, and all
data are in one place. The network begins with the same weights as in the run, and learns from the training
samples of all devices together.

Each round has as many epochs as a round of a device in FedAvg, and begins with a new optimiser. No models are
averaged. The one model is measured on the test samples of every domain. The folder has the format of a run's folder,
so reports and comparisons can show it beside other runs.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import torch

from protofleet.coordinator.observe.curves import measured, rounds_done
from protofleet.coordinator.observe.measured import SAMPLES, by_domain, pooled
from protofleet.coordinator.observe.record import RoundRecord
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.observe.summary_file import write_summary
from protofleet.coordinator.server.diverged import DivergedError
from protofleet.edge_client.compute import compute_place, moved
from protofleet.edge_client.data.shard import Shard, Shards
from protofleet.edge_client.evaluate import evaluate
from protofleet.edge_client.state.data_file import write_data_file
from protofleet.lab.local.class_check import agreed_names
from protofleet.lab.local.data_check import require_data
from protofleet.lab.local.experiment import Experiment, recorded
from protofleet.lab.local.run import prepare_folder
from protofleet.lab.local.sole_use import alone
from protofleet.lab.report.run_page import final_table, write_report
from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.torch_setup import compute_as_a_device
from protofleet.methods.parts.local import LocalHyper
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.settings.reader import SettingsError, encode, read_toml, write_toml
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.installation.provenance import digest_of_experiment, software
from protofleet.runtime.installation.version import installed_version

NAME: Final = "centralised"
LABEL: Final = "centralised, not federated"
WORDS: Final = "all devices' data in one process"
VIEW: Final = "global"


@dataclass(frozen=True)
class Union:
    """The training samples of all devices, in the order of the devices' names."""

    x: torch.Tensor
    y: torch.Tensor


def run_centralised(experiment: Experiment, runs: Path) -> Path:
    """Run the centralised training and return the path of its report.

    The folder of an earlier run of this name is renamed first. If the training diverges, a DivergedError is
    raised.
    """
    agreed_names(experiment)
    require_data([experiment])
    prepare_folder(experiment, runs, fresh=True)
    return run_prepared(experiment, runs)


@alone
def run_prepared(experiment: Experiment, runs: Path) -> Path:
    if experiment.networks:
        print(
            f"the network is {experiment.network.name}; devices.networks is not used, because this training has no "
            "devices"
        )
    folder, disk = runs / experiment.name, Disk(durable=False)
    shards, hyper = shards_of(experiment), local_settings(experiment)
    experiment.own_plugins.keep(folder)
    disk.replace(folder / "experiment.toml", write_toml(settings_table(experiment)).encode())
    for name, shard in shards.items():
        disk.make(folder / "devices" / name)
        write_data_file(folder / "devices" / name, shard.domain, shard.counts().tolist(), shard.names)
    lines = RoundsFile(folder / "rounds.jsonl", disk)
    for record in rounds(experiment, shards, hyper):
        require_finite(record)
        lines.round_ended(record)
        mean = sum(record.accuracy[VIEW].values()) / len(record.accuracy[VIEW])
        measured_at = (
            "in the final evaluation" if record.kind == "evaluation" else f"before round {record.round}"
        )
        print(f"mean accuracy {measured_at}: {mean:.1%}, {record.seconds:.1f} s", flush=True)
    write_summary(folder / "summary.json", summary_of(experiment, shards, lines.records), disk)
    report = write_report(folder)
    print(final_table(folder))
    return report


def finished_before(experiment: Experiment, runs: Path) -> bool:
    """Return whether a run with this name and the same settings has finished."""
    folder = runs / experiment.name
    try:
        written = read_toml(folder / "experiment.toml")
    except SettingsError:
        return False
    return (folder / "summary.json").exists() and written == settings_table(experiment)


def settings_table(experiment: Experiment) -> dict[str, Any]:
    return {**recorded(experiment), "method": {"name": NAME, **encode(local_settings(experiment))}}


def named(experiment: Experiment, seed: int | None = None) -> Experiment:
    """Return the experiment with the name of its centralised run.

    If a seed is given, the name ends with the seed, like the names of other runs.
    """
    name = f"{experiment.name}-{NAME}"
    return (
        replace(experiment, name=name)
        if seed is None
        else replace(experiment, name=f"{name}-s{seed}", seed=seed)
    )


def shards_of(experiment: Experiment) -> Mapping[str, Shard]:
    place, loader = compute_place(experiment.compute, experiment.plan), Shards()
    allowed = experiment.own_plugins.allowed()
    return {
        name: moved(loader.load(data, allowed), place) for name, data in sorted(experiment.shards.items())
    }


def local_settings(experiment: Experiment) -> LocalHyper:
    """Return the settings of local training. The method's other settings are not used by this training.

    Raise SettingsError if the method trains nothing, because then nothing says how to train.
    """
    settings = experiment.plan.settings()
    if missing := [field.name for field in fields(LocalHyper) if not hasattr(settings, field.name)]:
        raise SettingsError(
            f"{experiment.plan.method} trains nothing: it has no setting {missing[0]}, so it has no centralised run; "
            "take a method that trains, for example with --set method.name=fedavg"
        )
    return LocalHyper(**{field.name: getattr(settings, field.name) for field in fields(LocalHyper)})


def rounds(experiment: Experiment, shards: Mapping[str, Shard], hyper: LocalHyper) -> Iterator[RoundRecord]:
    """Train all rounds and yield their records.

    The network is measured before each round and after the last one, in the same way as a global model.
    """
    compute_as_a_device()
    x = torch.cat([shard.train.x for shard in shards.values()])
    y = torch.cat([shard.train.y for shard in shards.values()])
    model = experiment.plan.model().to(x.device)
    learner = fedavg.Client(model, Union(x, y), hyper, experiment.seed, NAME)
    for number in range(1, experiment.rounds + 2):
        started_at, last = time.monotonic(), number > experiment.rounds
        record = measured_before(number, "evaluation" if last else "training", learner, shards)
        learner.begin(number)
        if not last:
            learner.run(Ask("train"))
        record.seconds = round(time.monotonic() - started_at, 3)
        yield record


def require_finite(record: RoundRecord) -> None:
    if all(math.isfinite(loss) for loss in record.loss[VIEW].values()):
        return
    place = "at the end" if record.kind == "evaluation" else f"before round {record.round}"
    raise DivergedError(f"the run has diverged: the loss is not finite {place}; lower method.lr")


def measured_before(
    number: int, kind: str, learner: fedavg.Client, shards: Mapping[str, Shard]
) -> RoundRecord:
    metrics = {name: evaluate(learner, shard, VIEW) for name, shard in shards.items()}
    held = {name: (shard.domain, len(shard.train.y)) for name, shard in shards.items()}
    nothing = {UP: dict[str, int](), DOWN: dict[str, int]()}
    return RoundRecord(
        number, 1, kind, participants=list(shards), payload=nothing, wire=nothing, fedavg={UP: 0, DOWN: 0},
        accuracy=by_domain(metrics, held, "accuracy.test"), loss=by_domain(metrics, held, "loss.test"),
        validation=by_domain(metrics, held, "accuracy.validation"),
        pooled=pooled(metrics, {name: found[SAMPLES] for name, found in metrics.items()}),
    )  # fmt: skip


def summary_of(
    experiment: Experiment, shards: Mapping[str, Shard], lines: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    found = measured(lines, VIEW)
    return {
        "name": experiment.name, "method": LABEL, "paper": WORDS, "network": experiment.network.name,
        "reports": VIEW, "rounds": experiment.rounds, "rounds_done": rounds_done(lines), "seed": experiment.seed,
        "devices": {n: {"domain": s.domain, "examples": len(s.train.y)} for n, s in shards.items()},
        "ended": "finished", "seconds": round(sum(line["seconds"] for line in lines), 1),
        "payload": {UP: {}, DOWN: {}}, "uncoded": {}, "wire": {UP: {}, DOWN: {}}, "fedavg": {UP: 0, DOWN: 0},
        "accuracy": found, "views": {VIEW: found}, "broker": "none", "security": NAME,
        "versions": {
            "protofleet": installed_version(), "python": platform.python_version(), "torch": torch.__version__,
            **software(),
        },
        "experiment": digest_of_experiment(settings_table(experiment)),
    }  # fmt: skip
