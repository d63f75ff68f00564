"""python -m tools.monitoring: writes deploy/compose/grafana/dashboards/*.json again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tools.monitoring.dashboards import DASHBOARDS

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "compose" / "grafana" / "dashboards"


def generate() -> dict[str, str]:
    """Return the text of each dashboard by its file name."""
    return {f"{name}.json": json.dumps(page(), indent=2) + "\n" for name, page in DASHBOARDS.items()}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in generate().items():
        (FOLDER / name).write_text(text)
