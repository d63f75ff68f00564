"""docker compose, told what to do with a stack's folder. Its own words go to the terminal unchanged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from protofleet.coordinator.observe.journal import read_rounds
from protofleet.deploy.errors import RunError
from protofleet.deploy.report.run_page import final_table, write_report
from protofleet.deploy.stack.layout import Stack
from protofleet.deploy.stack.prepare import COMPOSE
from protofleet.protocol.wire.names import COORDINATOR

MADE: Final = ("compose.env", "devices.yaml")
POLL_SECONDS: Final = 1.0


def command(folder: Path, *words: str) -> list[str]:
    environment, devices = (folder.absolute() / name for name in MADE)
    files = ["-f", str(COMPOSE / "compose.yaml"), "-f", str(devices)]
    return ["docker", "compose", "--env-file", str(environment), *files, *words]


def up(folder: Path) -> None:
    check_docker()
    _run(command(folder, "up", "--detach", "--remove-orphans"), "the stack did not come up")


def down(folder: Path, forget: bool) -> None:
    if not (folder / MADE[0]).exists():
        raise RunError(f"there is no stack in {folder}; say FOLDER=... if it is elsewhere")
    check_docker()
    _run(command(folder, "down", "--remove-orphans"), "the stack did not end")
    if forget:
        shutil.rmtree(folder)


def logs(folder: Path) -> int:
    return subprocess.run(command(folder, "logs", "--follow", "--tail", "100")).returncode


def follow(stack: Stack) -> int:
    """The results lie on this machine, so nothing has to be asked of a container but whether it runs."""
    shown = 0
    while True:
        over = (stack.run / "summary.json").exists()
        for record in read_rounds(stack.run / "rounds.jsonl")[shown:]:
            shown += 1
            print(line(record, stack.experiment.reports), flush=True)
        if over:
            break
        if problem := coordinator_problem(stack.folder):
            raise RunError(problem)
        time.sleep(POLL_SECONDS)
    shutil.copy(stack.folder / "experiment.toml", stack.run)
    report = write_report(stack.run)
    print(f"{final_table(stack.run)}\nreport: {report}")
    return 0


def line(record: dict[str, object], view: str) -> str:
    accuracy = record["accuracy"]
    assert isinstance(accuracy, dict)
    domains = accuracy.get(view, {})
    mean = f"{sum(domains.values()) / len(domains):.1%}" if domains else "-"
    wire = record["wire"]
    assert isinstance(wire, dict)
    up, down = (sum(wire.get(way, {}).values()) for way in ("up", "down"))
    return (
        f"round {record['round']:>3}  {record['seconds']:>6} s  accuracy {mean}  up {up:,} B  down {down:,} B"
    )


def coordinator_problem(folder: Path) -> str:
    done = subprocess.run(
        command(folder, "ps", "--all", "--format", "json", COORDINATOR), capture_output=True, text=True
    )
    if done.returncode:
        return f"docker compose does not answer: {done.stderr.strip()[-300:]}"
    for text in done.stdout.splitlines():
        state = json.loads(text)
        if state["State"] == "exited" and state["ExitCode"] == 0:
            return ""
        if state["State"] in ("created", "running", "restarting"):
            return ""
        return f"the coordinator has ended with {state['ExitCode']}; `make logs` shows why"
    return "the coordinator does not run; `make up` starts the stack"


def places(stack: Stack) -> str:
    told = stack.environment()
    lines = [f"results: {stack.run}", f"Prometheus: http://{told['PROMETHEUS_PORT']}"]
    if "grafana" in told["COMPOSE_PROFILES"]:
        lines.append(
            f"Grafana: http://{told['GRAFANA_PORT']}, user admin, password in {stack.folder}/grafana/password"
        )
    return "\n".join(lines)


def _run(words: list[str], problem: str) -> None:
    if subprocess.run(words).returncode:
        raise RunError(f"{problem}; what docker said stands above, `make logs` has more")


def check_docker() -> None:
    if shutil.which("docker") is None:
        raise RunError("there is no docker on this machine; install Docker with its compose plugin")
    done = subprocess.run(["docker", "compose", "version"], capture_output=True, env=os.environ)
    if done.returncode:
        raise RunError(
            "docker has no compose plugin; install docker-compose-plugin (Debian 13: docker-compose)"
        )
