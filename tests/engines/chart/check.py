"""Render a chart with Helm's own library, and check objects against the schemas of Kubernetes.

`python check.py render CHART VALUES` prints the messages of Helm's lint, and the objects; VALUES is JSON.
`python check.py validate VERSION ...` reads objects from standard input, and prints the problem of each object for
each version; "" if there is none. Input and output are JSON. It runs in the environment of lock.txt, which has no
protofleet.
"""

import json
import sys
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml

NOTES = "NOTES.txt"
WORST = 1  # Level of a message: 1 is information, 2 a warning, 3 an error.


def render(chart: str, values: dict[str, Any]) -> dict[str, Any]:
    report = helm_python.lint(chart, values)
    wrong = [str(one["error"]) for one in report["messages"] if one["severity"] > WORST]
    try:
        with helm_python.Chart.load(Path(chart)) as loaded:
            texts = loaded.render(values=values, name="tested", namespace="tested")
    except helm_python.HelmError as error:
        return {"helm": helm_python.helm_sdk_version(), "lint": wrong, "refused": str(error), "objects": []}
    notes = "".join(text for path, text in texts.items() if path.endswith(NOTES))
    objects = [
        one
        for path, text in texts.items()
        if not path.endswith(NOTES)
        for one in yaml.safe_load_all(text)
        if one
    ]
    return {
        "helm": helm_python.helm_sdk_version(), "lint": wrong, "refused": "", "notes": notes, "objects": objects,
    }  # fmt: skip


def problem_with(found: dict[str, Any], version: str) -> str:
    try:
        checked = kubernetes_validate.validate(found, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message[:200]}"
    return "" if checked == version else f"the schema is of {checked}"


def main(job: str, *words: str) -> Any:
    if job == "render":
        return render(words[0], json.loads(words[1]))
    return [[problem_with(one, version) for version in words] for one in json.load(sys.stdin)]


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
