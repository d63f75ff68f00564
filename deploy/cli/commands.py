"""The sub-commands. Heavy imports happen inside, so that `--help` answers at once."""

from __future__ import annotations

from typing import Any

from protofleet.deploy.cli.deploy import add_deploy, add_doctor
from protofleet.deploy.cli.enrol import add_enrol
from protofleet.deploy.cli.lists import add_keys, add_lists
from protofleet.deploy.cli.runs import add_compare, add_report, add_run
from protofleet.deploy.cli.services import (
    add_coordinator,
    add_device,
    add_fleet,
    add_go_on,
    add_health,
    add_unban,
)

Jobs = Any  # argparse keeps the type of its sub-parsers to itself


def add_all(jobs: Jobs) -> None:
    add_run(jobs)
    add_coordinator(jobs)
    add_device(jobs)
    add_fleet(jobs)
    add_health(jobs)
    add_unban(jobs)
    add_keys(jobs)
    add_enrol(jobs)
    add_deploy(jobs)
    add_doctor(jobs)
    add_go_on(jobs)
    add_report(jobs)
    add_compare(jobs)
    add_lists(jobs)
