"""systemd itself reads the units that docs/serving.md shows."""

import re
import shutil
import subprocess

import pytest

from tests.rooms import ROOT

SHOWN = re.compile(r"^# /etc/systemd/system/(\S+)\n((?:.+\n)+)", re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_analyze_accepts_the_documented_path_unit_and_its_service(tmp_path):
    block = re.search(r"```ini\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.DOTALL)[1]
    units = dict(SHOWN.findall(block))
    assert set(units) == {"my-app-model.path", "my-app-model.service"}
    assert "Unit=my-app-model.service" in units["my-app-model.path"]
    for name, text in units.items():
        (tmp_path / name).write_text(
            text.replace("/usr/bin/systemctl", shutil.which("systemctl") or "/bin/true")
        )
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "my-app-model.path")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "my-app" in line]
    assert (done.returncode, ours) == (0, []), done.stderr
