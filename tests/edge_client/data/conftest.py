"""Build the six domains of digits once for all tests, and let torch compute on one thread."""

import os
from pathlib import Path

import pytest
import torch

from protofleet.edge_client.data.catalog import domains
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard


@pytest.fixture(scope="session")
def all_digits(tmp_path_factory) -> Path:
    """Return a folder with all six domains of Digits.

    All test processes share the folder. The lock of the package lets one process at a time build it.
    """
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "digits"
    for domain in domains("digits"):
        load_shard(DataSettings(root=str(root), domain=domain))
    return root


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
