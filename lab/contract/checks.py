"""Run the checks of a plug-in one after the other.

Each outcome has the seconds that the check took. If the check failed, the outcome also has the problem.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shard
from protofleet.lab.contract import averages, data, halves, methods, metrics, networks
from protofleet.lab.contract.small_classes import small_classes_are_not_sent
from protofleet.lab.contract.worlds import ContractError, Subject, require, shard
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.own_metrics import Metric
from protofleet.methods.contract.plan import Network
from protofleet.methods.contract.torch_setup import one_thread
from protofleet.methods.nets.catalog import recipe_of
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.authors import AuthorError, words_of
from protofleet.methods.plugins.errors import PlugInError, reason_of

Check: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class CheckOutcome:
    name: str
    seconds: float
    problem: str = ""  # The problem in words; empty if the check has passed.

    @property
    def holds(self) -> bool:
        return not self.problem


@dataclass
class Bench:
    """The runs for the checks of one subject.

    All checks share one run without failures. Each further run gets a new folder.
    """

    subject: Subject
    folder: Path
    _runs: int = field(default=0)

    @cached_property
    def unbroken(self) -> Simulation:
        return self.subject.simulation(self.next_folder()).run()

    def next_folder(self) -> Path:
        self._runs += 1
        return self.folder / str(self._runs)

    def of_the_run(self, check: Callable[[Subject, Simulation], None]) -> Check:
        return lambda: check(self.subject, self.unbroken)

    def beside_it(self, check: Callable[[Subject, Simulation, Path], None]) -> Check:
        return lambda: check(self.subject, self.unbroken, self.next_folder())

    def alone(self, check: Callable[[Subject, Path], None]) -> Check:
        return lambda: check(self.subject, self.next_folder())


def of_method(bench: Bench) -> Mapping[str, Check]:
    """Return the checks of a method, with one network for all devices."""
    subject, m = bench.subject, methods
    return {
        "learns": bench.of_the_run(m.learns),
        "measures what it says": bench.of_the_run(m.measures_its_own_views),
        "tells of all its networks": bench.of_the_run(m.tells_all_its_networks),
        "predicts by its rule": bench.of_the_run(m.predicts_by_its_rule),
        "export works": bench.beside_it(m.exports_each_way),
        "repeats and order change no bit": bench.beside_it(m.repeats_change_nothing),
        "a codec that loses nothing changes no bit": bench.beside_it(m.coding_without_loss_changes_nothing),
        "lost frames change no bit": bench.beside_it(m.lost_frames_change_nothing),
        "a crashed coordinator ends with the same bits": bench.beside_it(
            m.crashed_coordinator_changes_nothing
        ),
        "a rebooted device ends with the same bits": bench.beside_it(m.rebooted_device_changes_nothing),
        **{
            f"a device stops nobody by answers of {fault}": bench.alone(
                partial(m.bad_device_stops_nobody, fault=fault)
            )
            for fault in m.SPOILT
        },
        "numbers below zero are refused": bench.alone(m.wild_numbers_are_refused),
        "a class that nobody holds, devices of one class": bench.alone(m.class_that_nobody_holds),
        "a fleet of one": bench.alone(m.fleet_of_one),
        "two samples are enough": bench.alone(m.two_samples_are_enough),
        "a late device takes part": bench.alone(m.late_device_takes_part),
        "devices that sit out go on": bench.alone(m.devices_that_sit_out_go_on),
        "a network with BatchNorm": bench.alone(m.network_with_batch_norm),
        "replies are not kept": lambda: halves.replies_are_not_kept(subject),
        "its state goes round": lambda: halves.state_goes_round(subject),
        "removed devices are forgotten": lambda: halves.removed_devices_are_forgotten(subject),
        "rounds without answers change nothing": lambda: halves.rounds_without_answers_change_nothing(
            subject
        ),
        "small classes are not sent": lambda: small_classes_are_not_sent(subject),
        "late replies count less": lambda: halves.late_replies_count_less(subject),
        "one mean stands for all replies": lambda: averages.one_mean_stands_for_all_replies(subject),
        "arrays are declared": lambda: halves.arrays_are_declared(subject.plan()),
        "cost is what crosses": lambda: halves.cost_is_what_crosses(subject.plan()),
    }


def of_network(network: Network, allowed: PlugIns, folder: Path) -> Mapping[str, Check]:
    n = networks
    found: dict[str, Check] = {
        "is made alike from a seed": partial(n.is_made_alike, network),
        "gives what its sizes say": partial(n.has_its_sizes, network),
        "heeds feature_size": partial(n.heeds_feature_size, network),
        "learns": partial(n.learns_from_a_batch, network),
        "has a form without memory": partial(n.has_a_form_without_memory, network),
    }
    sample = n.sample_for(recipe_of(network.name, network.plugin))
    shards = {f"device-{i}": shard(i, shape=sample) for i in range(3)}
    benches = {
        name: Bench(Subject(name, network=network, allowed=allowed, shards=shards), folder / name)
        for name in ("fedavg", "fedproto")
    }
    for name, bench in benches.items():
        found[f"{name}: a run comes to its end"] = bench.of_the_run(methods.comes_to_its_end)
        found[f"{name}: a crashed coordinator ends with the same bits"] = bench.beside_it(
            methods.crashed_coordinator_changes_nothing
        )
    return found


def of_data(settings: DataSettings, allowed: PlugIns, folder: Path) -> Mapping[str, Check]:
    def shards() -> dict[str, Shard]:
        return data.shards_of(settings, allowed)

    def run() -> None:
        held = shards()
        made = Subject("fedavg", network=Network("mlp"), allowed=allowed, shards=held)
        methods.require_numbers(made.simulation(folder / "run").run())

    return {
        "gives what its settings say": shards,
        "is the same again": lambda: data.are_the_same_again(settings, allowed),
        "shares differ": lambda: data.shares_differ(shards()),
        "agree on classes": lambda: data.agree_on_classes(shards()),
        "a run comes to its end": run,
    }


def of_metrics(found: Mapping[str, Metric]) -> Mapping[str, Check]:
    return {
        f"{name}: {what}": partial(check, function)
        for name, function in found.items()
        for what, check in metrics.CHECKS.items()
    }


def outcomes(checks: Mapping[str, Check], path: str) -> Iterator[CheckOutcome]:
    """Run the checks and yield their outcomes.

    `path` is the author's own file. If one of its lines raises an exception, the outcome names that line.
    """
    for name, check in checks.items():
        started_at = time.perf_counter()
        with one_thread():
            problem = problem_of(check, path)
        yield CheckOutcome(name, time.perf_counter() - started_at, problem)


def problem_of(check: Check, path: str) -> str:
    try:
        check()
    except (AuthorError, ContractError, DataError, PlugInError) as error:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - every exception of the author's code is reported
        return words_of(error) or f"{path}: {reason_of(error)}"
    return ""


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="protofleet-check-")


__all__ = [
    "Bench",
    "CheckOutcome",
    "of_data",
    "of_method",
    "of_metrics",
    "of_network",
    "outcomes",
    "require",
    "scratch",
]
