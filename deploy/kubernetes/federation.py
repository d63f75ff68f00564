"""Define the federation of a chart, its groups of devices, and what its pods cannot have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.deploy.kubernetes.forms import NAME_FORM
from protofleet.edge_client.data.catalog import find
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.public import DRAWN
from protofleet.protocol.settings.reader import SettingsError, Table, override

# One ConfigMap holds 1 MiB, and the records of all devices are in one ConfigMap. A record has 363 bytes, or up to 500
# with the longest names.
MOST_DEVICES: Final = 1000
# One Secret holds 1 MiB, and the keys of a group are in one Secret. They take about 1.4 kB for each device.
MOST_IN_GROUP: Final = 250
USUAL_GROUP: Final = 12  # devices of a pod, if the number of groups is not given
# Pods of a lost node begin elsewhere after minutes, or later if no other node has room. The round waits for a day.
PATIENCE: Final = 86_400.0
DATA: Final = Path("/data")  # the path of the operator's data in a pod


@dataclass(frozen=True)
class ChartFederation:
    """The parties of a chart, and the objects of Kubernetes that run them."""

    name: str  # The beginning of the name of each object.
    experiment: Experiment
    groups: tuple[tuple[str, ...], ...]  # The devices of each pod.
    queue: bool = False  # True if the coordinator conducts submitted runs.
    claims: bool = False  # True if each pod of devices has a claim of its own.

    @property
    def largest(self) -> int:
        return max(map(len, self.groups))

    @property
    def broker_host(self) -> str:
        return f"{self.name}-broker"

    @property
    def stays(self) -> bool:
        """Return whether the devices wait for the next run when a run is over."""
        return self.queue or self.claims


def federation_of(
    experiment: Experiment, name: str, groups: int, queue: bool, claims: bool
) -> ChartFederation:
    """Return the federation of an experiment; raise SettingsError if Kubernetes would refuse it."""
    name = name or experiment.name
    if problem := NAME_FORM.problem_with(name):
        raise SettingsError(f"the name of the objects is {name!r}, {problem}; choose one with --name")
    devices = sorted(experiment.shards)
    if len(devices) > MOST_DEVICES:
        raise SettingsError(
            f"the experiment has {len(devices)} devices, and a chart at most {MOST_DEVICES}, because one ConfigMap "
            "of 1 MiB has the records of all devices; use fewer devices, or write a chart for each federation"
        )
    number = groups or -(-len(devices) // USUAL_GROUP)
    if number > len(devices):
        raise SettingsError(
            f"--groups is {number}, but there are {len(devices)} devices, and an index without a device would never "
            f"end; use at most {len(devices)}"
        )
    found = ChartFederation(
        name, experiment, tuple(tuple(devices[i::number]) for i in range(number)), queue, claims
    )
    if found.largest > MOST_IN_GROUP:
        least = -(-len(devices) // MOST_IN_GROUP)
        raise SettingsError(
            f"--groups is {number}, so a group has {found.largest} devices, but a Secret of 1 MiB has the keys of at "
            f"most {MOST_IN_GROUP}; use --groups {least} or more"
        )
    return found


def patient(experiment: Experiment, table: Table, assignments: Sequence[str]) -> Experiment:
    """Return the experiment with more patience for lost nodes, unless its file or an assignment names a patience."""
    policy = override(table, assignments).get("policy")
    if isinstance(policy, dict) and "patience_seconds" in policy:
        return experiment
    return replace(experiment, policy=replace(experiment.effective_policy, patience_seconds=PATIENCE))


def demand_pods_can_run(experiment: Experiment, claim: str) -> None:
    """Raise SettingsError for the first setting that needs something of this machine which no pod has."""
    if plugins := [*experiment.own_plugins.sources, *experiment.own_plugins.packages]:
        raise SettingsError(
            f"the experiment uses the plug-in {plugins[0]}, and the chart carries no plug-ins; use built-in methods, "
            "networks and data"
        )
    _demand_broker(experiment)
    for name, data in experiment.shards.items():
        if data.inbox:
            raise SettingsError(f"data.inbox is {data.inbox!r}, but pods have no inbox; leave it out")
        if data.root and not Path(data.root).is_relative_to(DATA):
            raise SettingsError(
                f"data.root of {name} is {data.root!r}, a folder of this machine; put the data into a claim, and use "
                f"--set data.root={DATA}/... --with data.claim=NAME"
            )
        if not claim and (data.root or find(data.source).needs_folder):
            raise SettingsError(
                f"{name} needs files of {data.source!r}, which no image has; put them into a claim, and use --with "
                "data.claim=NAME"
            )
    _demand_files(experiment, claim)


def _demand_broker(experiment: Experiment) -> None:
    broker = experiment.broker
    if broker.kind not in ("auto", "mosquitto") or broker.tls == "off":
        wrong = f"kind is {broker.kind!r}" if broker.tls != "off" else "tls is 'off'"
        raise SettingsError(
            f"broker.{wrong}, but the chart has a Mosquitto of its own with TLS; leave out the table [broker]"
        )


def _demand_files(experiment: Experiment, claim: str) -> None:
    """Raise SettingsError if the run needs a file of weights or public images, and the pods have no data."""
    public = experiment.public
    needs = "init" if experiment.init is not None else ""
    if public is not None and public.source != DRAWN and find(public.source).needs_folder:
        needs = "public"
    if needs and not claim:
        raise SettingsError(
            f"[{needs}] needs a file of this machine's data folder, which no image has; put it into a claim, and use "
            "--with data.claim=NAME"
        )
