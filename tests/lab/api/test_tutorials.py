"""The tutorials, from an empty folder to their end: every file is written and every command is run, in order."""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from protofleet.deploy.fleet.software import build_wheel
from protofleet.federation.brokers.ports import free_port
from protofleet.runtime.children import command
from tests.lab.api.tutorial import steps_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build_wheel(folder)
    (made,) = folder.glob("*.whl")
    return made


class Reader:
    """A reader who follows the steps of a page, in a separate folder.

    The reader downloads nothing: the wheel of this checkout and the packages are there.
    """

    def __init__(self, folder, wheel):
        self.folder, self.wheel, self.said = folder, wheel, []

    def follow(self, page):
        for step in steps_of(page):
            if step.file:
                (self.folder / step.file).write_text(step.text)
                continue
            for line in step.text.splitlines():
                self.say(line)

    def say(self, line):
        if line.startswith("python3 -m venv "):
            return self.make_environment(line.split()[-1])
        if line == "pip install protofleet":
            return self.install()
        done = subprocess.run(
            ["bash", "-c", '. env/bin/activate && eval "$1"', "bash", line],
            cwd=self.folder, env=self.environment, text=True,
            capture_output=True, stdin=subprocess.DEVNULL, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        self.said.append((line, done.stdout))

    @property
    def environment(self):
        """Return the environment variables, except those that name this checkout or the tests' environment."""
        hidden = str(Path(sys.executable).parent)
        path = os.pathsep.join(one for one in os.environ["PATH"].split(os.pathsep) if one != hidden)
        return {**{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}, "PATH": path}

    def make_environment(self, name):
        venv.create(self.folder / name, with_pip=False, symlinks=True)
        (library,) = (self.folder / name).glob("lib/python3*/site-packages")
        # A line of a .pth adds a folder whose own .pth files are not read: this checkout is not seen.
        places = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
        (library / "theirs.pth").write_text("\n".join(places))

    def install(self):
        done = subprocess.run(
            [*command("pip"), "--python", str(self.folder / "env" / "bin" / "python"), "install", "-q", "--no-deps",
             "--no-index", "--ignore-installed", str(self.wheel)], capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def output_of(self, words):
        (found,) = [text for line, text in self.said if line.startswith(words)]
        return found


def test_the_researchers_tutorial_produces_a_table_with_the_readers_own_method(wheel, tmp_path):
    reader = Reader(tmp_path, wheel)
    reader.follow("tutorial-researcher.md")
    table = (tmp_path / "table.tex").read_text()
    assert all(name in table for name in ("first", "proto", "mine", r"\toprule", r"\textbf"))
    assert (tmp_path / "runs.csv").read_text().count("\n") == 7
    assert "<svg" in (tmp_path / "comparison.html").read_text()
    summary = json.loads((tmp_path / "runs" / "mine-s1" / "summary.json").read_text())
    assert summary["method"] == "fedmomentum" and summary["accuracy"]["final"]["mean"] > 0.5
    curve = reader.output_of("python curve.py").splitlines()
    assert len(curve) == 8 and curve[-1] == "mine" and curve[0].startswith(" 0.00 MB")


# All lines run in one shell, because `&` and `jobs` belong to a shell. At its end it kills all its jobs.
PROLOGUE = "set -ex\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n. env/bin/activate\n"


def engineers_lines(port):
    """Return the files and the command lines of the engineer's tutorial up to its section "On the boards".

    tests/containers runs that section.
    """
    steps = [step for step in steps_of("tutorial-engineer.md") if step.section != "On the boards"]
    files = {step.file: step.text.replace("8883", str(port)) for step in steps if step.file}
    lines = [line for step in steps if not step.file for line in step.text.splitlines()]
    assert lines[:3] == ["python3 -m venv env", ". env/bin/activate", "pip install protofleet"]
    as_root = (
        " --user root" if os.geteuid() == 0 else ""
    )  # otherwise Mosquitto runs as a user who cannot read these files
    said = [line + as_root if line.startswith("protofleet enrol fleet") else line for line in lines[3:]]
    # A reader submits the run when the coordinator has said that it is up.
    said.insert(said.index("protofleet submit shapes.toml"), "until protofleet runs; do sleep 0.2; done")
    return files, "\n".join(said).replace("8883", str(port))


def test_the_engineers_tutorial_serves_a_model_on_three_devices_and_rolls_it_back(wheel, tmp_path):
    reader = Reader(tmp_path, wheel)
    reader.make_environment("env")
    reader.install()
    files, lines = engineers_lines(free_port())
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "page.sh").write_text(PROLOGUE + lines)
    with (tmp_path / "said").open("w") as out:
        done = subprocess.run(
            ["bash", "page.sh"], cwd=tmp_path, env=reader.environment, stdout=out, stderr=out,
            stdin=subprocess.DEVNULL, timeout=480,
        )  # fmt: skip
    said = (tmp_path / "said").read_text()
    assert done.returncode in (0, 143) and "Traceback" not in said, said
    assert re.search(r"^6 circle square triangle$", said, re.MULTILINE), said
    assert re.search(r"^5 circle square triangle$", said, re.MULTILINE), "the version before"
    rolled_back, list_after = said.partition("+ protofleet model rollback")[2].split("+ python app.py")
    assert "is v000011 of round 5 (pinned; " in rolled_back
    assert re.search(r"v000011 .* round 5 .* current pinned", list_after)
    assert "is v000012 of round 6 (the newest" in list_after
    assert all((tmp_path / "runs" / name / "report.html").exists() for name in ("shapes", "again"))
    states = said.rpartition("+ protofleet runs")[2].partition("+ protofleet follow")[0]
    assert re.search(r"^again +queued +waits for shapes, which is running", states, re.MULTILINE), states
    assert re.search(r"^shapes +running", states, re.MULTILINE), states
