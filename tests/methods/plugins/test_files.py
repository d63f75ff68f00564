"""Tests of plug-in files: exactly the hashed bytes are run, and an error is one line with file and line number."""

import hashlib
import os
import sys
from pathlib import Path

import pytest

from protofleet.methods.plugins import file
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.errors import PlugInError
from protofleet.methods.plugins.file import from_file
from protofleet.methods.plugins.found import demand_type, find, object_of
from protofleet.methods.plugins.paths import IN_SETTINGS
from tests.support.plug_ins import sha256

BROKEN = {
    "import torch\ndef f(:\n": ":2: SyntaxError: ",
    "import torch\n\n\nx = undefined\n": ":4: NameError: name 'undefined' is not defined",
    "import torch\ndef f():\n    torch.zeros(2) @ torch.zeros(3)\nf()\n": ":3: RuntimeError: ",
    "\nraise SystemExit(3)\n": ":2: SystemExit: 3",
    "from protofleet.methods.contract.base import Methd\n": ":1: ImportError: cannot import name 'Methd'",
    "import einops_x\n": ":1: ModuleNotFoundError: No module named 'einops_x'",
    "raise BaseException('so\\nlong')\n": ":1: BaseException: so",
    "x = '\x00'\n": ": ",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_refused_in_one_line_with_its_deepest_line(tmp_path, text):
    path = tmp_path / "fedexp.py"
    path.write_text(text)
    with pytest.raises(PlugInError) as error:
        from_file(path, None)
    said = str(error.value)
    assert said.startswith(str(path)) and BROKEN[text] in said and "\n" not in said
    assert f"{file.PREFIX}{sha256(text)}" not in sys.modules


def test_an_interrupt_by_the_user_ends_the_import_of_a_plug_in(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        from_file(path, None)


def test_a_file_without_its_constant_is_refused_with_the_name_of_the_constant(tmp_path):
    path = tmp_path / "fedexp.py"
    path.write_text("METHD = 1\n")
    _, module = from_file(path, None)
    with pytest.raises(PlugInError, match=r"^fedexp.py has no METHOD = Method\(...\)$"):
        object_of("method", module)
    with pytest.raises(PlugInError, match=r"^fedexp.py: METHOD is int \(1\); write METHOD = Method"):
        demand_type(1, str, "method", "fedexp.py")
    with pytest.raises(PlugInError, match=r"^fedexp.py: METHOD is the class Path; write METHOD = Method"):
        demand_type(Path, str, "method", "fedexp.py")


def test_a_missing_file_a_folder_a_pipe_and_a_large_file_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_bytes(b"#" * (file.LARGEST + 1))
    words = {
        "none.py": "there is no such file",
        "": "is a folder",
        "pipe.py": "is not a regular file",
        "large.py": "has more than 1,048,576 bytes",
    }
    for name, word in words.items():
        with pytest.raises(PlugInError, match=word):
            from_file(tmp_path / name, None)


def test_the_error_for_a_missing_file_names_the_folder_that_was_searched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        PlugInError, match=f"^none.py: there is no such file; it was looked for in {tmp_path}$"
    ):
        from_file(Path("none.py"), None, IN_SETTINGS)
    whole = tmp_path / "none.py"
    with pytest.raises(PlugInError, match=f"^{whole}: there is no such file$"):
        from_file(whole, None)
    with pytest.raises(PlugInError, match=f"{whole}: there is no such file; {IN_SETTINGS}$"):
        PlugIns().hash_of("method", "none", str(whole), ours=False)


def test_a_file_whose_hash_is_not_allowed_is_not_run(tmp_path):
    path, mark = tmp_path / "x.py", tmp_path / "ran"
    text = f"open({str(mark)!r}, 'w')\nMETHOD = 1\n"
    path.write_text(text)
    with pytest.raises(
        PlugInError,
        match=f"SHA-256 {sha256(text)}, which is not allowed here; the owner of this machine can add",
    ):
        from_file(path, {"0" * 64})
    assert not mark.exists()
    from_file(path, {sha256(text)})
    assert mark.exists()


def test_a_file_that_was_changed_after_it_was_allowed_is_not_run(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("X = 1\n")
    allowed = {sha256("X = 1\n")}
    path.write_text("X = 2  # tampered with\n")
    with pytest.raises(PlugInError, match="is not allowed here"):
        from_file(path, allowed)


def test_the_hashed_bytes_are_run_even_if_a_link_changes_after_the_hashing(tmp_path, monkeypatch):
    good, evil, link = tmp_path / "good.py", tmp_path / "evil.py", tmp_path / "link.py"
    good.write_text("WHO = 'the allowed one'\n")
    evil.write_text("WHO = 'another'\n")
    link.symlink_to(good)
    honest, allowed = hashlib.sha256, {sha256(good.read_text())}

    def swapped(data=b""):
        link.unlink()
        link.symlink_to(evil)
        return honest(data)

    monkeypatch.setattr("protofleet.methods.plugins.file.hashlib.sha256", swapped)
    _, module = from_file(link, allowed)
    assert link.resolve() == evil and module.WHO == "the allowed one"


def test_two_files_with_the_same_bytes_are_one_module(tmp_path):
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    text += "@dataclass(frozen=True)\nclass A:\n    n: int = 1\n"
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(text)
    assert from_file(tmp_path / "a.py", None)[1] is from_file(tmp_path / "b.py", None)[1]


def test_a_plug_in_that_was_not_loaded_is_not_found_by_its_hash():
    with pytest.raises(
        PlugInError, match="the method ghost is a plug-in with SHA-256 f{64}, which is not loaded"
    ):
        find("method", "ghost", "f" * 64, object)
