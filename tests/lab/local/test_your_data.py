"""The commands of docs/your-data.md are run from its first line to its last, in one folder."""

import contextlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from protofleet.cli.main import main

PAGE = Path(__file__).parents[3] / "docs" / "your-data.md"
BLOCK = re.compile(r"^```(python|sh long)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_commands_of_the_page_your_data_work_in_their_order(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    said = []
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            (tmp_path / "page.py").write_text(text)
            subprocess.run([sys.executable, "page.py"], check=True, cwd=tmp_path)
            continue
        for line in text.strip().splitlines():
            program, *words = shlex.split(line)
            with contextlib.suppress(SystemExit):
                assert program == "protofleet" and main(words) == 0, line
            said.append(capfd.readouterr().out)
    looked, ran = said[::2], said[1::2]
    assert len(looked) == len(ran) == 3
    assert "train 29, validation 3, test 16" in looked[0] and "classes: ripe, unripe" in looked[0]
    assert "classes: sound, worn" in looked[1] and "classes: idle, walk" in looked[2]
    assert all("samples" in text and "report: " in text and " images" not in text for text in ran[1:])
    for text in ran:
        (mean,) = (line for line in text.splitlines() if line.startswith("mean"))
        assert float(mean.split()[-1].rstrip("%")) > 90, f"the example must reach a good accuracy: {mean}"
    for name in ("fruit", "pump", "watch"):
        assert "training samples of 2 classes" in (tmp_path / "runs" / name / "report.html").read_text()
