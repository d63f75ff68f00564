"""The commands of Slurm for one machine: each task of a job is a process here. Tests run whole federations with it.

`ProcessSlurm` writes the commands. This file is also the program behind them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
COMMAND = '#!/bin/sh\nexec {python} -I -S {program} {folder} {name} "$@"\n'


@dataclass
class ProcessSlurm:
    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "jobs").mkdir()
        for name in COMMANDS:
            program = self.folder / "bin" / name
            program.write_text(
                COMMAND.format(python=sys.executable, program=Path(__file__), folder=self.folder, name=name)
            )
            program.chmod(0o755)

    @property
    def path(self) -> str:
        return f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    @property
    def jobs(self) -> list[str]:
        return [path.name for path in in_order(self.folder)]

    def pids(self, job: str) -> dict[int, int]:
        """Return the process of each task of a job that has not ended."""
        return {task: pid for task, pid in tasks_of(self.folder / "jobs" / job).items() if alive(pid)}

    def go_away(self) -> None:
        """Let no command answer, as if the controller was killed."""
        (self.folder / "away").touch()

    def come_back(self) -> None:
        (self.folder / "away").unlink()

    def break_share(self, index: int) -> None:
        """Let each start of this share of the devices end at once, as on a node without Python."""
        (self.folder / "broken").write_text(f"--share {index}/")

    def lose_node(self, job: str, task: int) -> None:
        """Kill a task with all its processes, as if its node was lost, and start it again as Slurm does elsewhere.

        Slurm also starts a task again that has just ended on such a node.
        """
        if pid := self.pids(job).get(task):
            os.killpg(pid, signal.SIGKILL)
        start(self.folder / "jobs" / job, task)


def in_order(folder: Path) -> list[Path]:
    return sorted((folder / "jobs").iterdir(), key=lambda path: int(path.name))


AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def tasks_of(job: Path) -> dict[int, int]:
    return {int(path.stem): int(path.read_text()) for path in job.glob("*.pid")}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def option(script: str, key: str) -> str:
    found = re.search(rf'^#SBATCH --{key}="?([^"\n]*)"?$', script, re.MULTILINE)
    return found[1] if found else ""


def say(line: str | int) -> None:
    sys.stdout.write(f"{line}\n")


def start(job: Path, task: int) -> None:
    settings = json.loads((job / "settings").read_text())
    script, broken = job / "script", job.parent.parent / "broken"
    if broken.exists() and broken.read_text() in script.read_text().replace(
        '"$SLURM_ARRAY_TASK_ID"', str(task)
    ):
        script = job / "broken"
        script.write_text("echo protofleet: no such Python here; exit 127")
    with Path(settings["output"].replace("%a", str(task))).open("a") as log:
        process = subprocess.Popen(
            ["sh", str(script)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            cwd=settings["folder"], env={**settings["environment"], "SLURM_ARRAY_TASK_ID": str(task)},
        )  # fmt: skip
    (job / f"{task}.pid").write_text(str(process.pid))


def sbatch(folder: Path, words: list[str]) -> None:
    script = Path(words[-1]).read_text()
    number = 1 + len(in_order(folder))
    job = folder / "jobs" / str(number)
    job.mkdir()
    (job / "script").write_text(script)
    (job / "comment").write_text(option(script, "comment"))
    settings = {
        "output": option(script, "output"),
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
    }
    (job / "settings").write_text(json.dumps(settings))
    for task in range(1 + int(option(script, "array").partition("-")[2])):
        start(job, task)
    say(number)


def squeue(folder: Path, words: list[str]) -> None:
    for job in in_order(folder):
        if "-j" in words and words[words.index("-j") + 1] != job.name:
            continue
        for task, pid in tasks_of(job).items():
            if alive(pid) and "--me" in words:
                say(f"{job.name}|{(job / 'comment').read_text()}")
            elif alive(pid):
                say(f"{task}|RUNNING|n{task}|None")


def scancel(folder: Path, words: list[str]) -> None:
    for pid in tasks_of(folder / "jobs" / words[-1]).values():
        if alive(pid):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL if "--signal=KILL" in words else signal.SIGTERM)


def main(folder: Path, name: str, words: list[str]) -> None:
    if (folder / "away").exists():
        sys.exit(AWAY)
    if name == "scontrol":
        say("ClusterName             = processes\nMaxArraySize            = 1001")
    elif name != "sinfo":
        {"sbatch": sbatch, "squeue": squeue, "scancel": scancel}[name](folder, words)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
