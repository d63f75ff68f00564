"""Boards that are made up are healthy at once or never: nothing is gained by waiting for them."""

import pytest

from protofleet.deploy.fleet import execute


@pytest.fixture(autouse=True)
def steady_at_once(monkeypatch):
    monkeypatch.setattr(execute, "STEADY_SECONDS", 0.0)
