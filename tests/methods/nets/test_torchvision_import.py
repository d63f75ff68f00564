"""Tests that torchvision is imported only when it is needed, and patched only when its import fails otherwise."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
import torch

from protofleet.methods.nets import catalog as nets
from protofleet.methods.nets.torchvision_import import import_torchvision

ROOT = Path(__file__).parents[3]


def in_a_fresh_process(program: str, path: Path = ROOT) -> None:
    program = f"import sys; sys.path[:0] = [{str(path)!r}, {str(ROOT)!r}]\n{textwrap.dedent(program)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_small_networks_do_not_import_torchvision():
    in_a_fresh_process("""
        from protofleet.methods.nets import catalog as nets
        for name in set(nets.names()) - set(nets.zoo.BACKBONES):
            sample = (3, 32, 32) if 3 in nets.RECIPES[name].ranks else nets.SERIES
            nets.build(name, classes=10, image=sample)
        assert "torchvision" not in sys.modules
    """)


@pytest.mark.slow
def test_a_torchvision_without_operators_can_be_imported_from_many_threads(tmp_path):
    """The replacement fails as torchvision does: it ignores its missing extension, then describes its operators."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from torchvision import extension, described\n")
    (package / "extension.py").write_text("import time; time.sleep(0.05)\n")
    (package / "described.py").write_text(
        "import torch\n"
        "for name in ('nms', 'qnms'):\n"
        "    torch.library.register_fake(f'torchvision::{name}')(lambda dets, scores, threshold: dets)\n"
    )
    in_a_fresh_process(
        """
        from concurrent.futures import ThreadPoolExecutor
        import torch
        from protofleet.methods.nets.torchvision_import import import_torchvision
        with ThreadPoolExecutor(8) as pool:
            modules = {id(f.result()) for f in [pool.submit(import_torchvision) for _ in range(8)]}
        assert modules == {id(import_torchvision())}
        assert torch.ops.torchvision.nms  # only import_torchvision can have declared it
        """,
        tmp_path,
    )


def test_a_torchvision_that_can_be_imported_is_not_patched(monkeypatch):
    intact = ModuleType("torchvision")
    monkeypatch.setitem(sys.modules, "torchvision", intact)
    monkeypatch.setattr(
        "protofleet.methods.nets.torchvision_import.declare_operators", lambda: pytest.fail("it was touched")
    )
    assert import_torchvision() is intact


def test_a_missing_torchvision_is_reported_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match="pip install torchvision.*work without torchvision"):
        nets.build("resnet18", classes=10)


@pytest.mark.parametrize(
    ("broken", "raised", "told"),
    [
        ("raise RuntimeError('out of memory')", RuntimeError, "^out of memory$"),
        (
            "raise RuntimeError('operator torchvision::roi does not exist')",
            ImportError,
            "with torch .*::roi",
        ),
        ("import no_such_codec", ModuleNotFoundError, "no_such_codec"),
    ],
)
def test_other_errors_of_the_import_of_torchvision_are_raised(tmp_path, monkeypatch, broken, raised, told):
    (tmp_path / "torchvision.py").write_text(broken)
    for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("protofleet.methods.nets.torchvision_import.declare_operators", lambda: None)
    with pytest.raises(raised, match=told):
        import_torchvision()


def test_the_real_torchvision_is_imported_once_and_its_transforms_work():
    torchvision = import_torchvision()
    assert import_torchvision() is torchvision
    transforms = pytest.importorskip("torchvision.transforms.v2")
    assert transforms.functional.resize(torch.rand(3, 20, 20), [32, 32]).shape == (3, 32, 32)
