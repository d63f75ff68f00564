"""Do not wait for the health of the tests' boards, which are healthy at once or never."""

import pytest

from protofleet.deploy.fleet import execute


@pytest.fixture(autouse=True)
def steady_at_once(monkeypatch):
    monkeypatch.setattr(execute, "STEADY_SECONDS", 0.0)
