"""Implement `protofleet kubernetes`: write a Helm chart for an experiment."""

from __future__ import annotations

import argparse
from pathlib import Path

from protofleet.runtime.command.arguments import TASKS, Subparsers, experiment_file
from protofleet.runtime.interrupts import held_interrupts


def add_kubernetes(commands: Subparsers) -> None:
    command = commands.add_parser(
        "kubernetes",
        help="write a Helm chart that runs an experiment's federation in a cluster; nothing is applied",
    )
    command.add_argument(
        "file", type=experiment_file, help="an experiment, for example experiments/demo.toml"
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the chart")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="change a setting of the experiment",
    )
    command.add_argument(
        "--with", dest="values", action="append", default=[], metavar="TABLE.KEY=VALUE",
        help="change a value of the chart, such as devices.cpu=2; values.yaml describes each value",
    )  # fmt: skip
    command.add_argument(
        "--name", default="", help="beginning of the name of each object (default: the name of the run)"
    )
    command.add_argument(
        "--groups", type=TASKS, default=0, metavar="N",
        help="number of pods that the devices are divided among (default: one for each 12 devices)",
    )  # fmt: skip
    command.add_argument(
        "--queue", action="store_true",
        help="the coordinator names no run, stays up, and conducts the runs that are submitted to it",
    )  # fmt: skip
    command.add_argument(
        "--claims", action="store_true",
        help="devices as a StatefulSet whose pods have claims of their own, for a cluster without ReadWriteMany",
    )  # fmt: skip
    command.set_defaults(command=kubernetes)


def kubernetes(options: argparse.Namespace) -> int:
    with held_interrupts():
        from protofleet.deploy.kubernetes.chart import Chart, write_chart
        from protofleet.deploy.kubernetes.federation import demand_pods_can_run, federation_of, patient
        from protofleet.deploy.kubernetes.steps import next_steps, warning
        from protofleet.deploy.kubernetes.values import read_values
        from protofleet.lab.local.experiment import experiment_table, read_experiment

    read = read_experiment(options.file, options.set)
    experiment = patient(read, experiment_table(options.file), options.set)
    federation = federation_of(experiment, options.name, options.groups, options.queue, options.claims)
    values = read_values(options.values)
    demand_pods_can_run(experiment, values.data.claim)
    files = Chart(federation, values).files()
    write_chart(options.out, files)
    print("\n".join(warning()))
    groups = federation.groups
    pods = "1 pod" if len(groups) == 1 else f"{len(groups)} pods"
    print(f"{options.out}: {len(files)} files; {sum(map(len, groups))} devices in {pods}")
    print("\n".join(next_steps(federation, str(options.out), values.image)))
    return 0
