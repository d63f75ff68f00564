"""Every code block of README.md is run: from a copy of the checkout, with the wheel, in an empty folder.

All blocks are run by one shell, in the order of the page, because a reader types them into one terminal. The shell
functions of INSTEAD replace the commands that would reach a package index or run for minutes. Comments
give the reasons.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rooms import ROOT

FENCE = re.compile(r"^(`{3,}|~{3,})([^\n]*)\n(.*?)^\1", re.MULTILINE | re.DOTALL)
LINES = 120  # The largest number of lines of the README.

# The shell functions that replace commands.
INSTEAD = rf"""
tests_python() {{ env PYTHONPATH={ROOT} {sys.executable} "$@"; }}

# `make demo` runs only three rounds, because all rounds are alike. `make test` runs one file of the suite: the whole
# suite takes minutes, and includes this test.
make() {{
    case "$*" in
        demo) sed -i "s/^rounds = .*/rounds = 3/" experiments/demo.toml && command make demo ;;
        test) command make test JOBS=1 ARGS=tests/test_readme.py ;;
        *) echo "no way to run: make $*"; return 1 ;;
    esac
}}

# A new environment sees the packages of the tests' environment, because the tests download nothing.
python3() {{
    [ "$1 $2" = "-m venv" ] || {{ echo "no way to run: python3 $*"; return 1; }}
    tests_python -m tests.support.installed "$3"
}}

# The tests download nothing: the build uses the setuptools that is here, the install takes the wheel alone.
pip() {{
    case "$1" in
        wheel) shift; tests_python -m pip wheel -q --no-build-isolation --no-index "$@" ;;
        install)
            shift
            tests_python -m pip --python "$VIRTUAL_ENV/bin/python" \
                install -q --no-deps --no-index --ignore-installed "$@" ;;
        *) echo "no way to run: pip $*"; return 1 ;;
    esac
}}
"""


class NoWayToRun(Exception):
    """A code block that this test cannot run."""


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the info string and the text of each code block."""
    fences = [line for line in text.splitlines() if line.lstrip(" >").startswith(("```", "~~~"))]
    found = [(info.strip(), inner) for _, info, inner in FENCE.findall(text)]
    if len(fences) != 2 * len(found):
        raise NoWayToRun(f"{len(fences)} lines begin or end a block, and {len(found)} blocks are found")
    return found


def script_of(text: str) -> str:
    """Return the shell script of all blocks: a file is written, a command is run."""
    steps = []
    for number, (info, inner) in enumerate(blocks(text), 1):
        language, _, name = info.partition(" ")
        steps.append(f"echo '== block {number}: {info}'")
        if language == "sh":
            steps.append(inner)
        elif language in ("toml", "python") and re.fullmatch(r"\w+\.\w+", name):
            steps.append(f"cat > {name} <<'END OF {name}'\n{inner}END OF {name}\n")
        else:
            raise NoWayToRun(f"block {number} of the README is `{info}`; it is run by nothing")
    return "\n".join(steps)


def checkout_in(folder: Path) -> Path:
    """Copy the checkout, with an environment like that of `make .venv/.dev` and without a download."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    setup = f"""set -e
        {sys.executable} -m tests.support.installed .venv
        {sys.executable} -m pip --python .venv/bin/python install -q --no-deps --no-build-isolation --no-index -e .
        touch .venv/.run .venv/.dev"""
    subprocess.run(["bash", "-c", setup], cwd=folder, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return folder


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(1800)
def test_all_blocks_of_the_readme_run_in_their_order(tmp_path):
    checkout = checkout_in(tmp_path / "checkout")
    home = tmp_path / "home"
    home.mkdir()
    script = "set -ex\n" + INSTEAD + script_of((ROOT / "README.md").read_text())
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join(one for one in os.environ["PATH"].split(os.pathsep) if one != programs)
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        ["bash", "-c", script], cwd=checkout, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=1700, env={**environment, "PATH": path, "HOME": str(home)},
    )  # fmt: skip
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0 and "Traceback" not in said, said
    assert (checkout / "runs" / "demo" / "report.html").exists()
    assert " passed" in done.stdout, "make test"
    assert (home / "protofleet" / "bin" / "protofleet").exists(), "pip install"
    for run in ("first", "proto", "near"):
        assert (home / "first" / "runs" / run / "report.html").exists(), said


def test_every_block_of_the_readme_can_be_run():
    text = (ROOT / "README.md").read_text()
    assert script_of(text).count("== block") == len(blocks(text)) > 5
    assert "make demo" in text and "make test" in text


@pytest.mark.parametrize(
    "text",
    [
        "```\nls\n```\n",
        "```text\na picture\n```\n",
        "```python\npass\n```\n",
        "  ```sh\nls\n  ```\n",
        "~~~c\n~~~\n",
    ],
)
def test_a_block_that_cannot_be_run_is_refused(text):
    with pytest.raises(NoWayToRun):
        script_of(text)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= LINES
