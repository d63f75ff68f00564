"""Tests of what is installed: one package name, all files, and no effect of files in the working directory."""

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from protofleet.deploy.images.build import packages_without_torch
from protofleet.protocol.settings.reader import read_toml
from protofleet.runtime.children import START, command
from protofleet.runtime.installation.checkout import PACKAGES
from tests.lab.local.test_run import furnished
from tests.support.installed import installed_in, own_environment, wheel_in

ROOT = Path(__file__).parent.parent
PROJECT = read_toml(ROOT / "pyproject.toml")["tool"]["setuptools"]
FOLDERS = tuple(PROJECT["package-dir"].values())
# `command` starts Python processes of the product. These files start other programs or another interpreter.
OTHERS = {
    "runtime/children.py": 3,
    "lab/datasets/carriers.py": 1,  # Tells uv for which interpreter to fetch.
    "deploy/fleet/commands.py": 1,  # Tells a shell script which interpreter has our program.
    "deploy/images/install_on_vendor_torch.py": 3,  # Runs without our package in an image during its build.
}
HOSTILE = {
    "random.py": "raise SystemExit('random.py of this folder was imported')",
    "torch.py": "raise SystemExit('torch.py of this folder was imported')",
    "protocol.py": "raise SystemExit('protocol.py of this folder was imported')",
    "methods/__init__.py": "raise SystemExit('methods of this folder was imported')",
    "deploy/__init__.py": "raise SystemExit('deploy of this folder was imported')",
}
TRAINS = """
import sys; sys.path[:] = [p for p in sys.path if p]
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.trainer.child_trainer import ChildTrainer
data = DataSettings(source="folder", root="data", size=8)
trainer = ChildTrainer(DeviceSettings("a", data=data, threads=1, trainer="child", compute="cpu"), lambda: None)
print(*trainer.data.names)
trainer.stop()
"""


def tracked(*folders):
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *folders], cwd=ROOT, capture_output=True, text=True
    )
    return [name for name in listed.stdout.split() if (ROOT / name).exists()]


def test_pyproject_lists_exactly_the_packages_of_the_tree():
    there = {Path(name).parent.as_posix() for name in tracked(*FOLDERS) if name.endswith("/__init__.py")}
    named = {folder if folder.split("/")[0] == "protofleet" else f"protofleet.{folder}" for folder in there}
    assert {name.replace("/", ".") for name in named} == set(PROJECT["packages"])


def test_each_copy_of_the_sources_includes_all_packages():
    assert set(FOLDERS) == set(PACKAGES)


@pytest.mark.parametrize("folder", FOLDERS)
def test_only_one_function_starts_python_processes(folder):
    for path in (ROOT / folder).rglob("*.py"):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text()
        nodes = ast.walk(ast.parse(text)) if "executable" in text else ()
        found = [node for node in nodes if ast.unparse(node) == "sys.executable"]
        assert len(found) == OTHERS.get(name, 0), (
            f"{name} starts a process by itself; see {command.__module__}"
        )


def test_no_module_is_loaded_under_two_names():
    """It also holds when the working directory is the checkout, where the folders have their short names."""
    named = (
        "protofleet.lab.local.run", "protofleet.cli.parser", "tools.pages.arrays",
        "protofleet.coordinator.main", "protofleet.edge_client.main", "protofleet.protocol.transport.mqtt",
    )  # fmt: skip
    code = f"import sys, {', '.join(named)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert set(named) <= set(loaded)
    assert not [name for name in loaded if name.split(".")[0] in set(FOLDERS) - {"protofleet"}]


def test_programs_in_the_tests_import_modules_by_their_full_names():
    """In the folder of the checkout Python would find the short names and load a second copy of every module."""
    short = "|".join(set(FOLDERS) - {"protofleet"})
    wrong = re.compile(rf"(?m)(?:^|;)\s*(?:from (?:{short})\b[\w.]* import\b|import (?:{short})\b)")
    near = re.compile(
        rf"(?:from|import)\s+(?:{short})\b"
    )  # Parsing all files takes seconds; few contain this.
    for path in (*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")):
        source = path.read_text()
        nodes = ast.walk(ast.parse(source)) if near.search(source) else ()
        texts = (n.value for n in nodes if isinstance(n, ast.Constant))
        assert not [text for text in texts if isinstance(text, str) and wrong.search(text)], path


def test_a_child_process_imports_nothing_from_the_working_directory(tmp_path):
    hostile(tmp_path)
    for start in (command("this"), [sys.executable, "-c", START, "this"]):
        done = subprocess.run([*start, "one"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "Beautiful is better than ugly" in done.stdout, done.stderr
    (tmp_path / "this.py").write_text("raise SystemExit('this.py of this folder was imported')")
    for start in (command("this"), [sys.executable, "-c", START, "this"]):
        done = subprocess.run([*start, "one"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "Beautiful is better than ugly" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return wheel_in(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_the_wheel_has_one_top_level_name_and_every_file(wheel):
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
        (top,) = [name for name in opened.namelist() if name.endswith("top_level.txt")]
        assert opened.read(top).decode().split() == ["protofleet"]
    there = {name if name.startswith("protofleet/") else f"protofleet/{name}" for name in tracked(*FOLDERS)}
    assert held == there


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return installed_in(tmp_path_factory.mktemp("installed"), wheel)


def hostile(folder):
    for name, text in HOSTILE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "protofleet").mkdir()


def ran(words, place, *options):
    done = subprocess.run(
        [*words, "run", "small.toml", *options], cwd=place, capture_output=True, text=True, timeout=240,
        env=own_environment(),
    )  # fmt: skip
    logs = "".join(path.read_text() for path in place.glob("runs/*/logs/*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert (place / "runs" / "small" / "summary.json").exists() and "this folder" not in logs


@pytest.mark.slow
@pytest.mark.parametrize(("broker", "start"), [("mosquitto", "fork"), ("embedded", "spawn")])
def test_an_installed_wheel_runs_an_experiment_in_a_folder_with_hostile_files(
    installed, tmp_path, broker, start
):
    """Broker, launcher, coordinator and devices: none of these processes imports files of the folder."""
    place = furnished(tmp_path)
    hostile(place)
    ran(
        [str(installed / "protofleet")],
        place,
        "--set",
        f"broker.kind='{broker}'",
        "--set",
        f"devices.start='{start}'",
    )


REBUILDS = """
import sys; sys.path[:] = [p for p in sys.path if p]
from pathlib import Path
from protofleet.runtime.command.errors import RunError
from protofleet.deploy.fleet.settings import Software
from protofleet.deploy.fleet.software import make_release
from protofleet.deploy.images.build import build_context, packages_without_torch
release = make_release(Software(), Path("release"))
print(release.name, *sorted(path.name for path in release.folder.iterdir()))
with build_context() as context:
    print(*sorted(path.name for path in (context / "source").iterdir()))
    print((context / "locks" / "requirements.txt").read_text() == "\\n".join(packages_without_torch()) + "\\n")
print(*packages_without_torch(), sep="|")
for damage in (lambda path: path.write_text("# changed"), lambda path: path.unlink()):
    damage(Path(sys.argv[1]))
    try:
        make_release(Software(), Path("release"))
    except RunError as error:
        print(error)
"""


@pytest.mark.slow
def test_an_installed_protofleet_rebuilds_its_wheel_for_devices_and_images(wheel, installed, tmp_path):
    (method,) = installed.parent.glob("lib/python3*/site-packages/protofleet/methods/fedprox.py")
    before = method.read_bytes()
    words = [str(installed / "python"), "-c", REBUILDS, str(method)]
    try:
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=own_environment())
    finally:
        method.write_bytes(before)
    assert done.returncode == 0, done.stderr
    release, source, same, needed, changed, missing = done.stdout.splitlines()
    assert set(release.split()[1:]) >= {wheel.name, "torch.txt", "device.txt"} and source == wheel.name
    assert content_of(tmp_path / "release" / wheel.name) == content_of(wheel)
    assert same == "True"
    assert {Requirement(one) for one in needed.split("|")} == {
        Requirement(one) for one in packages_without_torch()
    }
    way_out = "pip install --force-reinstall --no-deps protofleet puts it right"
    assert changed == f"{method} is not as it was installed (its hash differs from that in RECORD); {way_out}"
    assert missing == f"{method} of the installed protofleet: No such file or directory; {way_out}"


def content_of(wheel):
    """Return the files of a wheel; the order of the list in RECORD is ignored."""
    with zipfile.ZipFile(wheel) as opened:
        found = {name: opened.read(name) for name in opened.namelist()}
    (record,) = [name for name in found if name.endswith("/RECORD")]
    return found | {record: set(found[record].split())}


COMMANDS = (
    "methods",
    "networks",
    "run experiments/fedsa/fedsa-digits.toml experiments/digits/fedproto.toml --seeds 1"
    " --set rounds=1 --set data.samples=30",
    "compare runs/fedsa-digits-s1 runs/digits-fedproto-s1",
)


@pytest.mark.slow
def test_an_installed_wheel_runs_commands_in_a_folder_with_hostile_files(installed, tmp_path):
    hostile(tmp_path)
    for words in COMMANDS:
        done = subprocess.run(
            [str(installed / "protofleet"), *words.split()], cwd=tmp_path, capture_output=True, text=True,
            env=own_environment(), timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    assert "fedsa-digits" in done.stdout and "digits-fedproto" in done.stdout, "the last one compares"


@pytest.mark.slow
def test_python_dash_m_and_scripts_import_protofleet_in_a_folder_with_hostile_files(installed, tmp_path):
    hostile(tmp_path)
    words = [str(installed / "python"), "-m", "protofleet", "methods"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=own_environment())
    assert done.returncode == 0 and "fedprox" in done.stdout, done.stderr
    # A script of the user imports these files instead of the modules that they hide.
    for name in ("random.py", "torch.py"):
        (tmp_path / name).unlink()
    (tmp_path / "script.py").write_text(
        "from protofleet.methods.contract.catalog import names\nprint(*names())\n"
    )
    words = [str(installed / "python"), "script.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=own_environment())
    assert done.returncode == 0 and "fedprox" in done.stdout, done.stderr


@pytest.mark.slow
def test_an_editable_install_runs_an_experiment_in_a_folder_with_hostile_files(tmp_path):
    place = furnished(tmp_path)
    hostile(place)
    # Python searches an editable install last, after an empty folder of the same name.
    shutil.rmtree(place / "protofleet")
    ran(command("protofleet"), place)


@pytest.mark.slow
def test_a_training_process_imports_nothing_from_the_working_directory(installed, tmp_path):
    hostile(furnished(tmp_path))
    words = [str(installed / "python"), "-c", TRAINS]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=own_environment())
    assert done.returncode == 0 and done.stdout.split() == ["circle", "line", "square"], done.stderr
