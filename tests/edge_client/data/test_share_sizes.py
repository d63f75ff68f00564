"""The exact size of each client's share and the largest number of parts are known from labels alone."""

from dataclasses import replace

import pytest

from protofleet.edge_client.data.domain import ImagesInMemory
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shards
from protofleet.edge_client.data.share_sizes import most_parts, problem_of_division, share_sizes

SHARES = {
    "of all": {},
    "drawn": {"split": "iid"},
    "skewed": {"split": "dirichlet", "beta": 1.0},
    "a fraction": {"fraction": 0.05},
    "at most so many": {"samples": 20, "test_samples": 7, "validation": 0.3},
    "with a test of their own": {"own_test": 0.3},
    "with all of these": {
        "own_test": 0.21,
        "fraction": 0.11,
        "samples": 33,
        "test_samples": 90,
        "split": "iid",
    },
}


@pytest.mark.parametrize("changes", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("parts", [1, 7])
def test_the_sizes_of_shares_are_those_that_clients_load(changes, parts):
    settings, shards = DataSettings(domain="optdigits", size=8, parts=parts, **changes), Shards()
    loaded = [shards.load(replace(settings, part=part)) for part in range(parts)]
    assert [(size.train, size.validation, size.test) for size in share_sizes(settings, shards)] == [
        (len(one.train.y), len(one.validation.y), len(one.test.y)) for one in loaded
    ]


def test_no_pixel_is_looked_at(monkeypatch):
    settings, shards = DataSettings(domain="optdigits", parts=3), Shards()
    monkeypatch.setattr(ImagesInMemory, "samples", None)
    assert len(share_sizes(settings, shards)) == 3


@pytest.mark.parametrize(
    ("parts", "changes"),
    [(2000, {}), (12, {"split": "dirichlet", "beta": 0.01}), (2000, {"own_test": 0.3, "validation": 0.5})],
)
def test_the_largest_number_of_parts_works_and_more_do_not(parts, changes):
    settings, shards = DataSettings(domain="optdigits", parts=parts, **changes), Shards()
    assert str(parts) in problem_of_division(settings, shards)
    most = most_parts(settings, shards)
    assert most > 1 and problem_of_division(replace(settings, parts=most), shards) == ""
    assert problem_of_division(replace(settings, parts=most + 1), shards)
