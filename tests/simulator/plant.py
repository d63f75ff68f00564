"""A pytest plugin that runs a test over a planted bug.

The command is `PLANT="seal: ..." python -m pytest -p tests.simulator.plant TEST`.
"""

from __future__ import annotations

import contextlib
import os

import pytest

from tests.simulator.planted import BUGS, planted


def pytest_configure(config: pytest.Config) -> None:
    stack = contextlib.ExitStack()
    stack.enter_context(planted(BUGS[os.environ["PLANT"]]))
    config.add_cleanup(stack.close)
