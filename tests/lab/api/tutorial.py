"""Read the steps of a tutorial (files to write and commands to run) in the order of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.rooms import ROOT

FENCE = re.compile(r"^```(\w+) (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """A step of a tutorial: a file to write, or lines for a shell (then `file` is empty)."""

    section: str
    file: str
    text: str


def steps_of(page: str) -> list[Step]:
    text = (ROOT / "docs" / page).read_text()
    return [step for section in re.split(r"^## ", text, flags=re.MULTILINE) for step in _steps_in(section)]


def _steps_in(section: str) -> Iterator[Step]:
    title = section.splitlines()[0]
    for language, tag, text in FENCE.findall(section):
        if language == "sh":
            yield Step(title, "", text)
        elif "." in tag:
            yield Step(title, tag, text)
