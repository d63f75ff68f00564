"""Make the parser of the `protofleet` command.

Commands import their modules only when they run, so that `--help` is printed without delay.
"""

from __future__ import annotations

import functools

from protofleet.cli.check import add_check
from protofleet.cli.codecs import add_codecs
from protofleet.cli.deploy import add_deploy, add_doctor
from protofleet.cli.engine import add_node_check, add_trials
from protofleet.cli.enrol import add_enrol, add_keys
from protofleet.cli.export import add_export
from protofleet.cli.follow import add_follow
from protofleet.cli.hand_over import add_hand_over
from protofleet.cli.init import add_init
from protofleet.cli.kubernetes import add_kubernetes
from protofleet.cli.label import add_label
from protofleet.cli.leakage import add_leakage
from protofleet.cli.lists import add_lists
from protofleet.cli.model import add_model
from protofleet.cli.nodes import add_head
from protofleet.cli.operate import add_operate
from protofleet.cli.page import add_page
from protofleet.cli.predict import add_predict
from protofleet.cli.queue import add_queue
from protofleet.cli.runs import add_advise, add_centralised, add_compare, add_report, add_run
from protofleet.cli.services import (
    add_coordinator,
    add_device,
    add_fleet,
    add_go_on,
    add_health,
    add_unban,
)
from protofleet.cli.settings import add_settings
from protofleet.cli.simulate import add_simulate
from protofleet.cli.sweep import add_sweep
from protofleet.cli.track import add_track
from protofleet.runtime.command.parser import Parser
from protofleet.runtime.installation.version import installed_version


@functools.cache  # A forked process uses the parser of its parent process.
def parser() -> Parser:
    top = Parser(prog="protofleet", description="Federated learning for fleets over MQTT.")
    top.add_argument("--version", action="version", version=f"protofleet {installed_version()}")
    top.add_argument("-v", "--verbose", action="store_true", help="log more")
    commands = top.add_subparsers(required=True, metavar="COMMAND", title="commands")
    add_run(commands)
    add_sweep(commands)
    add_centralised(commands)
    add_simulate(commands)
    add_coordinator(commands)
    add_device(commands)
    add_fleet(commands)
    add_health(commands)
    add_operate(commands)
    add_queue(commands)
    add_label(commands)
    add_follow(commands)
    add_page(commands)
    add_leakage(commands)
    add_unban(commands)
    add_keys(commands)
    add_init(commands)
    add_enrol(commands)
    add_deploy(commands)
    add_kubernetes(commands)
    add_doctor(commands)
    add_go_on(commands)
    add_hand_over(commands)
    add_report(commands)
    add_compare(commands)
    add_advise(commands)
    add_export(commands)
    add_lists(commands)
    add_codecs(commands)
    add_settings(commands)
    add_model(commands)
    add_predict(commands)
    add_check(commands)
    add_track(commands)
    add_head(commands)
    add_trials(commands)
    add_node_check(commands)
    return top
