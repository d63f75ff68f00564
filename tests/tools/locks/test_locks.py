"""Only files whose hashes are written down in the locks are installed."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib.metadata import distributions
from itertools import chain

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from protofleet.deploy.images.build import build_context
from protofleet.protocol.settings.reader import read_toml
from protofleet.runtime.installation.checkout import PACKAGES
from protofleet.runtime.locks.lockfile import (
    LOCKS_FOLDER,
    LockedPackage,
    normalized_name,
    pinned_versions,
    read_lock,
    read_wheel,
    with_wheels,
    write_lock,
)
from tools.locks import __main__ as locks

LOCKS = sorted(LOCKS_FOLDER.glob("*.txt"))
SOURCE = LOCKS_FOLDER.parent.parent
PYTHONS = locks.PYTHONS
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def wheel_of(folder, name="tiny", version="1.0"):
    """Write the smallest wheel that pip accepts, and return its path."""
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(f"{name}.py", "")
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "")
    return path


def test_every_required_package_is_locked_with_the_version_of_the_constraints():
    locked = {package.name: set() for path in LOCKS for package in read_lock(path.read_text())}
    for path in LOCKS:
        for package in read_lock(path.read_text()):
            locked[package.name].add(package.version)
    project = read_toml(SOURCE / "pyproject.toml")["project"]
    asked = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    for line in asked:
        assert normalized_name(re.match(r"[A-Za-z0-9._-]+", line)[0]) in locked, f"{line}: run make locks"
    constraints = (LOCKS_FOLDER.parent / "constraints.txt").read_text()
    assert "torch" in pinned_versions(constraints)
    for name, versions in pinned_versions(constraints).items():
        assert versions <= locked.get(name, versions), f"{name}: {versions}: run make locks"


def locked_on(python, but=("cpu",)):
    """Return name -> versions that the locks install on this Python, and the environment for markers."""
    here = {
        "python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux",
        "platform_machine": "x86_64", "platform_python_implementation": "CPython", "extra": "",
    }  # fmt: skip
    found = {}
    for package in chain(*(read_lock(path.read_text()) for path in LOCKS if path.stem not in but)):
        if not package.marker or Marker(package.marker).evaluate(here):
            found.setdefault(package.name, set()).add(package.version)
    return found, here


@pytest.mark.parametrize("python", PYTHONS)
def test_the_locks_satisfy_every_requirement_on_every_python(python):
    there, here = locked_on(python)
    assert {name: versions for name, versions in there.items() if len(versions) > 1} == {}
    project = read_toml(SOURCE / "pyproject.toml")["project"]
    for line in [*project["dependencies"], *chain(*project["optional-dependencies"].values())]:
        asked = Requirement(line)
        if asked.marker is None or asked.marker.evaluate(here):
            (version,) = there.get(normalized_name(asked.name)) or {"none; run make locks"}
            assert asked.specifier.contains(version, prereleases=True), f"{line}: the locks have {version}"


@pytest.mark.parametrize("python", PYTHONS)
def test_the_locks_satisfy_the_requirements_of_locked_packages_on_every_python(python):
    """The packages of this environment name their requirements. A test below queries the index for other Pythons."""
    there, here = locked_on(python, but=("cpu", "data"))  # data.txt has pictures and no code
    installed = {normalized_name(one.name): one for one in distributions()}
    seen = [
        installed[n] for n, (version,) in there.items() if n in installed and installed[n].version == version
    ]
    assert len(seen) > 30
    for one in seen:
        wanted = one.metadata.get("Requires-Python") or ""
        assert SpecifierSet(wanted).contains(f"{python}.1"), (
            f"{one.name} {one.version} is for Python {wanted}"
        )
        for asked in map(Requirement, one.requires or ()):
            if asked.marker is None or asked.marker.evaluate(here):
                (version,) = there.get(normalized_name(asked.name)) or {f"nothing on Python {python}"}
                assert asked.specifier.contains(version, prereleases=True), f"{one.name}: {asked}: {version}"


def test_every_supported_python_is_checked():
    wanted = SpecifierSet(read_toml(SOURCE / "pyproject.toml")["project"]["requires-python"])
    assert [python for python in (f"3.{minor}" for minor in range(6, 30)) if python in wanted] == list(
        PYTHONS
    )


@pytest.mark.slow
def test_the_index_has_every_locked_package_for_every_python_and_machine(tmp_path, capfd):
    """This is `--check`. Without an index it shows nothing, but CI has an index."""
    code = locks.main(["--check", "--folder", str(tmp_path / "uv")])
    said = capfd.readouterr()
    if code == locks.NOT_CHECKED and "CI" not in os.environ:
        pytest.skip(said.err.strip())
    assert code == 0, said.err
    assert [line.split(":")[0] for line in said.out.splitlines()] == [
        f"Python {python} on {machine}" for python in PYTHONS for machine in locks.MACHINES
    ]
    older = tmp_path / "older.txt"
    packages = read_lock((LOCKS_FOLDER / "dev.txt").read_text())
    sdk = next(replace(p, marker="") for p in packages if p.name == "grafana-foundation-sdk")
    older.write_text(write_lock([sdk], "one that is for later Pythons"))
    assert locks.check(tmp_path / "uv" / "bin" / "uv", [older]) == 1
    said = capfd.readouterr()
    assert said.err.count("\n") == len(locks.MACHINES) and "Python>=3.11" in said.err


CHART_LOCK = locks.CHART_TESTS / "lock.txt"


def test_only_the_chart_lock_has_the_packages_of_the_chart_tests():
    locked = {package.name: package.version for package in read_lock(CHART_LOCK.read_text())}
    for line in (CHART_LOCK.parent / "requirements.txt").read_text().split():
        name, _, version = line.partition("==")
        assert locked[name] == version
        assert not [
            path for path in LOCKS if name in {package.name for package in read_lock(path.read_text())}
        ]


@pytest.mark.parametrize("path", [*LOCKS, CHART_LOCK], ids=lambda path: path.stem)
def test_a_lock_names_no_host_and_is_unchanged_after_a_read_and_a_write(path):
    text = path.read_text()
    assert "://" not in text and "index" not in text.splitlines()[1]
    words = text.splitlines()[0].removeprefix("# ").partition(";")[0]
    assert write_lock(read_lock(text), words) == text


@pytest.mark.parametrize(
    "line", ["tiny==1.0", "tiny>=1.0 \\\n    --hash=sha256:" + "0" * 64, "tiny==1.0 \\\n    --hash=md5:12"]
)
def test_a_line_without_a_version_or_its_hash_is_refused(line):
    with pytest.raises(ValueError, match="is no `name==version`"):
        read_lock(line)


def test_a_wheel_with_another_hash_is_not_installed(tmp_path):
    wheel = read_wheel(wheel_of(tmp_path))
    lock, target = tmp_path / "lock.txt", tmp_path / "target"
    flipped = f"sha256:{int(wheel.hash[7:], 16) ^ 1:064x}"
    how = [*PIP, "install", "-q", "--require-hashes", "--only-binary=:all:", "--no-deps", "--no-index"]
    for good, allowed in ((True, wheel.hash), (False, flipped)):
        lock.write_text(write_lock([LockedPackage("tiny", "1.0", "", (allowed,))], "one"))
        command = [*how, "--find-links", str(tmp_path), "--target", str(target / str(good)), "-r", str(lock)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode == 0) == good, done.stderr
        assert (target / str(good) / "tiny.py").exists() == good
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_make_installs_only_the_checkout_itself_without_a_hash():
    command = ["make", "-n", "-B", "VENV=/nowhere", "/nowhere/.dev"]
    said = subprocess.run(
        command, cwd=SOURCE, capture_output=True, text=True, env={**os.environ, "MAKEFLAGS": ""}
    ).stdout
    installs = [line for line in said.splitlines() if "pip" in line and " install " in line]
    ours = [line for line in installs if "-e ." in line]
    assert len(installs) >= 7 and len(ours) == 1
    assert all(
        "--no-index" in line and "--no-deps" in line and "--no-build-isolation" in line for line in ours
    )
    for line in (line for line in installs if line not in ours):
        assert "--require-hashes --only-binary=:all:" in line, line


def made_by(*words):
    environment = {**os.environ, "MAKEFLAGS": ""}
    command = ["make", "-n", "-B", "--no-print-directory", "VENV=/nowhere", *words]
    return subprocess.run(
        command, cwd=SOURCE, capture_output=True, text=True, env=environment
    ).stdout.splitlines()


@pytest.mark.parametrize("target", ["up", "demo-compose", "images", "down", "logs"])
def test_make_looks_for_a_container_engine_before_it_installs_anything(target):
    assert made_by(target)[0] == "sh deploy/images/engine.sh"


@pytest.mark.parametrize(
    ("docker", "words"), [("", "there is no docker"), ("exit 1", "engine does not answer"), ("exit 0", "")]
)
def test_a_missing_container_engine_is_reported_in_one_line_with_the_fix(tmp_path, docker, words):
    if docker:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{docker}\n")
        (tmp_path / "docker").chmod(0o755)
    environment = {**os.environ, "PATH": str(tmp_path)}
    script = SOURCE / "deploy/images/engine.sh"
    done = subprocess.run(["/bin/sh", script], capture_output=True, text=True, env=environment)
    assert done.returncode == (1 if words else 0)
    assert words in done.stderr and len(done.stderr.splitlines()) == bool(words)
    assert not words or "`make demo`" in done.stderr


PIP_SAYS = """echo 'Collecting torch'
echo '  Downloading https://index.example/torch-2.13.0-cp311-cp311-linux_x86_64.whl (191.2 MB)'
echo 'Using cached numpy-2.4.6-cp311-cp311-linux_x86_64.whl (16.6 MB)'
echo 'Downloading tiny-1.0-py3-none-any.whl (12 kB)'
echo 'ERROR: no space' >&2
exit 3
"""


def test_make_demo_prints_each_download_and_exits_with_the_code_of_pip():
    steps = [line for line in made_by("demo") if "install.sh" in line]
    assert [step for step in steps if " of 4: " in step] and len(steps) == 5
    command = ["sh", SOURCE / "runtime/locks/install.sh", "1 of 4: torch", "sh", "-c", PIP_SAYS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "1 of 4: torch\n  torch-2.13.0  191.2 MB\n  numpy-2.4.6  16.6 MB\n"
    assert (done.returncode, done.stderr) == (3, "ERROR: no space\n")


def test_a_local_wheel_replaces_the_locked_package(tmp_path):
    packages = [
        LockedPackage("tiny", "1.0", "", ("sha256:" + "0" * 64,)),
        LockedPackage("other", "2.0", "", ("sha256:" + "1" * 64,)),
    ]
    same, newer = (
        read_wheel(wheel_of(tmp_path, version="1.0+cpu")),
        read_wheel(wheel_of(tmp_path, version="1.1")),
    )
    assert list(with_wheels(packages, [same]))[0].hashes == ("sha256:" + "0" * 64, same.hash)
    assert list(with_wheels(packages, [newer])) == [
        LockedPackage("tiny", "1.1", "", (newer.hash,)),
        packages[1],
    ]
    assert read_wheel(tmp_path / "no.wheel") is None


@pytest.mark.slow
def test_the_wheel_of_the_project_is_built_only_with_locked_tools(tmp_path):
    """Without a required hash, pip would fetch a newer setuptools by name, from any place, and run it."""
    source, planted = tmp_path / "source", tmp_path / "planted"
    for package in PACKAGES:
        shutil.copytree(SOURCE / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(SOURCE / file, source)
    planted.mkdir()
    wheel_of(planted, "setuptools", "999.0")
    making = "from pathlib import Path; from protofleet.runtime.installation import checkout; "
    making += "from protofleet.deploy.fleet import software; "
    making += "checkout.ROOT = software.ROOT = Path('source'); "
    making += "print(software.make_release(software.Software(), Path('made')).description)"
    done = subprocess.run(
        [sys.executable, "-c", making], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PIP_FIND_LINKS": str(planted)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "made").glob("protofleet-*.whl")
    with zipfile.ZipFile(wheel) as made:
        (info,) = (name for name in made.namelist() if name.endswith("/WHEEL"))
        locked = {p.name: p.version for p in read_lock((LOCKS_FOLDER / "build.txt").read_text())}
        assert f"Generator: setuptools ({locked['setuptools']})" in made.read(info).decode()


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "deploy" / "images").glob("*Dockerfile")), ids=lambda p: p.name
)
def test_the_wheel_in_an_image_is_built_only_with_locked_tools(path):
    (line,) = re.findall(r"pip wheel .*", path.read_text())
    assert "--no-build-isolation --no-index" in line
    (tools,) = re.findall(r"pip install [^&]*?-r /locks/build.txt", path.read_text(), re.DOTALL)
    assert "--require-hashes --only-binary=:all: --no-deps" in tools
    with build_context() as context:
        assert read_lock((context / "locks" / "build.txt").read_text())
