"""Run docker compose on a stack's folder. Docker's output goes to the terminal unchanged."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.deploy.images.docker_engine import UNFETCHED, require_docker
from protofleet.deploy.stack.layout import Stack
from protofleet.deploy.stack.prepare import COMPOSE
from protofleet.lab.report.run_page import final_table, write_report
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.command.errors import RunError

ENVIRONMENT_FILE: Final = "compose.env"
DEVICES_FILE: Final = "devices.yaml"
POLL_SECONDS: Final = 1.0
PROMETHEUS: Final = "prometheus"


def compose_command(folder: Path, *arguments: str) -> list[str]:
    files = ["-f", str(COMPOSE / "compose.yaml"), "-f", str(folder.absolute() / DEVICES_FILE)]
    environment = ["--env-file", str(folder.absolute() / ENVIRONMENT_FILE)]
    return ["docker", "compose", *environment, *files, *arguments]


def up(folder: Path) -> None:
    was_there = _asked(folder, "ps", "--status", "running", "--quiet", PROMETHEUS)
    command = compose_command(folder, "up", "--detach", "--remove-orphans")
    if subprocess.run(command).returncode:
        raise RunError(
            f"the stack did not start; docker's output is above, and `make logs` shows more. {UNFETCHED}; "
            "`make images` builds our images; ARGS='--with PROMETHEUS_IMAGE=name' uses another image, for example "
            "an image that you have loaded; ARGS='--with COMPOSE_PROFILES=' starts the stack without Grafana"
        )
    if was_there.strip():
        # Prometheus must read its settings again, because an operator may have edited them. A process inside the
        # container sends the signal: after a `docker kill`, the engine would not restart a failed container.
        _asked(folder, "exec", "-T", PROMETHEUS, "sh", "-c", "kill -HUP 1")


def is_running(folder: Path) -> bool:
    """Return whether the coordinator's container is running."""
    return bool(_asked(folder, "ps", "--status", "running", "--quiet", COORDINATOR).strip())


def _asked(folder: Path, *words: str) -> str:
    return subprocess.run(compose_command(folder, *words), capture_output=True, text=True).stdout


def down(folder: Path, forget: bool) -> None:
    _require_stack(folder)
    if subprocess.run(compose_command(folder, "down", "--remove-orphans")).returncode:
        raise RunError("the stack did not stop; docker's output is above")
    if forget:
        shutil.rmtree(folder)


def _require_stack(folder: Path) -> None:
    if not (folder / ENVIRONMENT_FILE).exists():
        raise RunError(f"there is no stack in {folder}; if the stack is in another folder, set FOLDER=...")
    require_docker("compose")


def logs(folder: Path) -> int:
    _require_stack(folder)
    return subprocess.run(compose_command(folder, "logs", "--follow", "--tail", "100")).returncode


def follow(stack: Stack) -> int:
    """Print each round until the run is over.

    The coordinator writes its results into a folder of this machine, and this function reads them there.
    """
    if stack.queue:
        raise SettingsError(
            "with --queue the coordinator conducts several runs; use `protofleet follow` with the folder of a run"
        )
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
    """Return the reason why the coordinator's container is not running.

    The result is "" if the container is running, or has ended with exit code 0.
    """
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
    """Return the folder of the results and the addresses of Prometheus and Grafana, for the terminal."""
    environment = stack.environment()
    lines = [f"results: {stack.run_folder}"]
    if stack.queue:
        runs = stack.state_folder(COORDINATOR)
        lines = [f"results: {runs}", f"the next step: protofleet submit {stack.first_run} --service {runs}"]
    lines += [f"Prometheus: http://{environment['PROMETHEUS_PORT']}"]
    if "grafana" in environment["COMPOSE_PROFILES"]:
        address, password = environment["GRAFANA_PORT"], stack.folder / "grafana" / "password"
        lines.append(f"Grafana: http://{address}, user admin, password in {password}")
    return "\n".join(lines)
