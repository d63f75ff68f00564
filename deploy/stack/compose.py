"""Runs docker compose on a stack's folder. Docker's output goes to the terminal unchanged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.deploy.errors import RunError
from protofleet.deploy.report.run_page import final_table, write_report
from protofleet.deploy.stack.layout import Stack
from protofleet.deploy.stack.prepare import COMPOSE
from protofleet.protocol.wire.names import COORDINATOR

ENVIRONMENT_FILE: Final = "compose.env"
DEVICES_FILE: Final = "devices.yaml"
POLL_SECONDS: Final = 1.0


def compose_command(folder: Path, *arguments: str) -> list[str]:
    files = ["-f", str(COMPOSE / "compose.yaml"), "-f", str(folder.absolute() / DEVICES_FILE)]
    environment = ["--env-file", str(folder.absolute() / ENVIRONMENT_FILE)]
    return ["docker", "compose", *environment, *files, *arguments]


def up(folder: Path) -> None:
    check_docker()
    _run(compose_command(folder, "up", "--detach", "--remove-orphans"), "the stack did not start")


def down(folder: Path, forget: bool) -> None:
    if not (folder / ENVIRONMENT_FILE).exists():
        raise RunError(f"there is no stack in {folder}; say FOLDER=... if it is elsewhere")
    check_docker()
    _run(compose_command(folder, "down", "--remove-orphans"), "the stack did not stop")
    if forget:
        shutil.rmtree(folder)


def logs(folder: Path) -> int:
    return subprocess.run(compose_command(folder, "logs", "--follow", "--tail", "100")).returncode


def follow(stack: Stack) -> int:
    """Print each round until the run is over; the coordinator's results are in a folder of this machine."""
    printed = 0
    while True:
        finished = (stack.run_folder / "summary.json").exists()
        for record in read_rounds(stack.run_folder / "rounds.jsonl")[printed:]:
            printed += 1
            print(round_line(record, stack.experiment.reports), flush=True)
        if finished:
            break
        if problem := coordinator_problem(stack.folder):
            raise RunError(problem)
        time.sleep(POLL_SECONDS)
    shutil.copy(stack.folder / "experiment.toml", stack.run_folder)
    report = write_report(stack.run_folder)
    print(f"{final_table(stack.run_folder)}\nreport: {report}")
    return 0


def round_line(record: dict[str, object], view: str) -> str:
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
    """Why the coordinator's container is not running; "" while it runs, and once it has exited with 0."""
    command = compose_command(folder, "ps", "--all", "--format", "json", COORDINATOR)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return f"docker compose failed: {done.stderr.strip()[-300:]}"
    for text in done.stdout.splitlines():
        state = json.loads(text)
        if state["State"] == "exited" and state["ExitCode"] == 0:
            return ""
        if state["State"] in ("created", "running", "restarting"):
            return ""
        return f"the coordinator has exited with code {state['ExitCode']}; `make logs` shows why"
    return "the coordinator has no container; `make up` starts the stack"


def endpoints(stack: Stack) -> str:
    """The addresses of the results, Prometheus and Grafana, for the terminal."""
    environment = stack.environment()
    lines = [f"results: {stack.run_folder}", f"Prometheus: http://{environment['PROMETHEUS_PORT']}"]
    if "grafana" in environment["COMPOSE_PROFILES"]:
        address, password = environment["GRAFANA_PORT"], stack.folder / "grafana" / "password"
        lines.append(f"Grafana: http://{address}, user admin, password in {password}")
    return "\n".join(lines)


def _run(command: list[str], problem: str) -> None:
    if subprocess.run(command).returncode:
        raise RunError(f"{problem}; docker's output is above, `make logs` has more")


def check_docker() -> None:
    if shutil.which("docker") is None:
        raise RunError("there is no docker on this machine; install Docker with its compose plugin")
    done = subprocess.run(["docker", "compose", "version"], capture_output=True, env=os.environ)
    if done.returncode:
        raise RunError(
            "docker has no compose plugin; install docker-compose-plugin (Debian 13: docker-compose)"
        )
