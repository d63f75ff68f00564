"""Tests that the profiles, the commands and the output in docs/virtual-time.md are correct."""

import re
from pathlib import Path

import pytest

from protofleet.cli.main import main
from protofleet.lab.virtual.profiles import AvailabilityProfile, BoardProfile, LineProfile, Profiles

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "virtual-time.md").read_text()


def block(kind, number=0):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[number]


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "boards.toml").write_text(block("toml profiles"))
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_command_of_the_page_prints_the_output_of_the_page(place, capsys):
    assert main(block("sh long").split()[1:]) == 0
    shown = capsys.readouterr().out.splitlines()
    for line in block("text").splitlines():
        assert line == "..." or line in shown, "\n".join(shown)
    assert (place / "runs/digits-fedavg-virtual/summary.json").exists()


@pytest.mark.slow
def test_the_sweep_of_the_page_runs(place, capsys):
    assert main(block("sh long", 1).split()[1:]) == 0
    assert "digits-fedavg-epochs-2-virtual" in capsys.readouterr().out


@pytest.mark.parametrize("cls", [Profiles, BoardProfile, LineProfile, AvailabilityProfile])
def test_every_key_of_a_profiles_file_is_on_the_page(cls):
    named = {"seconds_from": "from"}
    missing = [
        name for name in cls.__dataclass_fields__ if not re.search(rf"\b{named.get(name, name)}\b", PAGE)
    ]
    assert missing == []
