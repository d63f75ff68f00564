"""Prometheus' own tests of rules, over the rules that are shipped."""

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
    """`tests` as promtool has them. The groups are evaluated in the order given: recorded figures first."""
    order = re.findall(
        r"- name: (\S+)", (RULES / "recording.yml").read_text() + (RULES / "alerts.yml").read_text()
    )
    file = folder / "tests.json"
    rules = [str(path) for path in sorted(RULES.glob("*.yml"))]
    table = {"rule_files": rules, "evaluation_interval": every, "group_eval_order": order, "tests": tests}
    file.write_text(json.dumps(table))
    return subprocess.run([PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, check=False)
