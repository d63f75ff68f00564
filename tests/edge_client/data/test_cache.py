"""A cached file is complete, correct and built only once, even if several processes need it at the same time."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from protofleet.edge_client.data.cache import cached, checksum, default_folder
from protofleet.edge_client.data.errors import DataError

ARRAYS = {"x": np.arange(5000, dtype=np.uint8).reshape(50, 100), "y": np.ones(50, np.uint8)}
ROOT = Path(__file__).parents[3]


class Builder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return ARRAYS


def same(found):
    return all((found[name] == ARRAYS[name]).all() for name in ARRAYS)


def test_a_cached_file_is_built_once_and_then_read(tmp_path):
    build = Builder()
    for _ in range(3):
        assert same(cached(tmp_path / "new" / "a.npz", checksum(ARRAYS), build))
    assert build.calls == 1


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: data.replace(b"\x07", b"\x08", 1)],
    ids=["emptied", "cut", "changed"],
)
def test_a_damaged_file_is_built_again(tmp_path, damage):
    path, build = tmp_path / "a.npz", Builder()
    cached(path, checksum(ARRAYS), build)
    path.write_bytes(damage(path.read_bytes()))
    assert same(cached(path, checksum(ARRAYS), build))
    assert build.calls == 2
    assert same(cached(path, checksum(ARRAYS), build)) and build.calls == 2


def test_a_whole_file_with_other_content_is_built_again(tmp_path):
    np.savez(tmp_path / "a.npz", **{**ARRAYS, "y": np.zeros(50, np.uint8)})
    assert same(cached(tmp_path / "a.npz", checksum(ARRAYS), Builder()))


def test_a_failed_build_leaves_only_the_lock_file(tmp_path):
    def fail():
        raise DataError("no")

    with pytest.raises(DataError, match="no"):
        cached(tmp_path / "a.npz", checksum(ARRAYS), fail)
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock"]


def test_a_failed_write_leaves_no_partial_file(tmp_path, monkeypatch):
    def full(file, **arrays):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(
        DataError, match=r"a\.npz cannot be written.*No space left.*data\.root.*PROTOFLEET_DATA"
    ):
        cached(tmp_path / "a.npz", checksum(ARRAYS), Builder())
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock"]


def test_the_error_names_a_cache_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file.a\.lock cannot be written.*data\.root.*PROTOFLEET_DATA"):
        cached(tmp_path / "file" / "a.npz", checksum(ARRAYS), Builder())


BUILD_SLOWLY = """
    import sys, time, types
    torch = types.ModuleType("torch"); torch.Tensor = object; sys.modules["torch"] = torch  # this saves a second
    import numpy as np
    from pathlib import Path
    from protofleet.edge_client.data.cache import cached, checksum

    folder = Path(sys.argv[1])
    arrays = {"x": np.arange(100, dtype=np.uint8)}

    def build():
        with (folder / "builds.txt").open("a") as file:
            file.write("built ")
        time.sleep(0.3)
        return arrays

    found = cached(folder / "a.npz", checksum(arrays), build)
    assert (found["x"] == arrays["x"]).all()
"""


def test_processes_that_need_the_same_file_wait_for_the_one_that_builds_it(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(BUILD_SLOWLY), str(tmp_path)]
    together = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(4)]
    for process in together:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    assert (tmp_path / "builds.txt").read_text() == "built "
    assert {path.name for path in tmp_path.iterdir()} == {"a.npz", "a.lock", "builds.txt"}


def test_an_environment_variable_sets_the_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PROTOFLEET_DATA", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv("PROTOFLEET_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    if os.name == "posix":
        assert default_folder() == tmp_path / ".cache" / "protofleet"
