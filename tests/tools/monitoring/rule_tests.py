"""Run Prometheus' own rule tests over the shipped rules."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[3] / "deploy" / "compose" / "prometheus" / "rules"
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool here; make container-tools installs it"
)


def run_promtool(folder, tests, every="1m"):
    """Run promtool on `tests`, which have promtool's own form, and return the finished process.

    The rule groups are evaluated in the order of the files: recording rules first, then alerts.
    """
    order = re.findall(
        r"- name: (\S+)", (RULES / "recording.yml").read_text() + (RULES / "alerts.yml").read_text()
    )
    file = folder / "tests.json"
    rules = [str(path) for path in sorted(RULES.glob("*.yml"))]
    table = {"rule_files": rules, "evaluation_interval": every, "group_eval_order": order, "tests": tests}
    file.write_text(json.dumps(table))
    return subprocess.run([PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, check=False)
