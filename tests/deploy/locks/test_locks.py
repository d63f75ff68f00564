"""Nothing is installed but files whose hashes are written down here."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from itertools import chain

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

from protofleet.deploy.checkout import PACKAGES
from protofleet.deploy.images.build import build_context
from protofleet.deploy.locks.lockfile import (
    LOCKS_FOLDER,
    LockedPackage,
    normalized_name,
    pinned_versions,
    read_lock,
    read_wheel,
    with_wheels,
    write_lock,
)
from protofleet.protocol.settings.reader import read_toml

LOCKS = sorted(LOCKS_FOLDER.glob("*.txt"))
SOURCE = LOCKS_FOLDER.parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def wheel_of(folder, name="tiny", version="1.0"):
    """As small as pip takes it."""
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(f"{name}.py", "")
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "")
    return path


def test_every_package_that_we_ask_for_is_locked_in_the_version_of_the_constraints():
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
        assert normalized_name(re.match(r"[A-Za-z0-9._-]+", line)[0]) in locked, f"{line}: say make locks"
    constraints = (LOCKS_FOLDER.parent / "constraints.txt").read_text()
    assert "torch" in pinned_versions(constraints)
    for name, versions in pinned_versions(constraints).items():
        assert versions <= locked.get(name, versions), f"{name}: {versions}: say make locks"


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_what_is_asked_for_is_installed_on_every_python(python):
    here = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux"}
    locked = [package for path in LOCKS for package in read_lock(path.read_text())]
    there = {p.name for p in locked if not p.marker or Marker(p.marker).evaluate(here)}
    project = read_toml(SOURCE / "pyproject.toml")["project"]
    for line in [*project["dependencies"], *chain(*project["optional-dependencies"].values())]:
        asked = Requirement(line)
        if asked.marker is None or asked.marker.evaluate(here):
            assert normalized_name(asked.name) in there, f"{line}: say make locks"


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_names_no_host_and_is_written_as_it_is_read(path):
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


def test_a_file_whose_hash_is_another_is_not_installed(tmp_path):
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


def test_make_installs_nothing_without_a_hash_but_our_own_source():
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


def test_a_wheel_that_is_brought_along_is_taken_in_place_of_the_locked_one(tmp_path):
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
def test_the_wheel_of_our_own_is_built_with_locked_tools_alone(tmp_path):
    """A newer setuptools, wherever pip finds one, is fetched by name and run; unless its hash is asked for."""
    source, planted = tmp_path / "source", tmp_path / "planted"
    for package in PACKAGES:
        shutil.copytree(SOURCE / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(SOURCE / file, source)
    planted.mkdir()
    wheel_of(planted, "setuptools", "999.0")
    making = "from pathlib import Path; from protofleet.deploy import checkout; "
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
    "path", sorted((LOCKS_FOLDER.parent / "images").glob("*Dockerfile")), ids=lambda p: p.name
)
def test_an_image_s_wheel_is_built_with_locked_tools_alone(path):
    (line,) = re.findall(r"pip wheel .*", path.read_text())
    assert "--no-build-isolation --no-index" in line
    (tools,) = re.findall(r"pip install [^&]*?-r /locks/build.txt", path.read_text(), re.DOTALL)
    assert "--require-hashes --only-binary=:all: --no-deps" in tools
    with build_context() as context:
        assert read_lock((context / "locks" / "build.txt").read_text())
