"""The exact size of each client's share and the largest number of parts are computed from the labels only."""

from dataclasses import replace

import pytest

from protofleet.edge_client.data.domain import ImagesInMemory
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shards
from protofleet.edge_client.data.share_sizes import most_parts, problem_of_division, share_sizes

SHARES = {
    "equal": {},
    "random": {"split": "iid"},
    "skewed": {"split": "dirichlet", "beta": 1.0},
    "fraction": {"fraction": 0.05},
    "limits": {"samples": 20, "test_samples": 7, "validation": 0.3},
    "own test": {"own_test": 0.3},
    "all settings": {
        "own_test": 0.21,
        "fraction": 0.11,
        "samples": 33,
        "test_samples": 90,
        "split": "iid",
    },
}


@pytest.mark.parametrize("changes", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("parts", [1, 7])
def test_computed_share_sizes_equal_the_sizes_that_clients_load(changes, parts):
    settings, shards = DataSettings(domain="optdigits", size=8, parts=parts, **changes), Shards()
    loaded = [shards.load(replace(settings, part=part)) for part in range(parts)]
    assert [(size.train, size.validation, size.test) for size in share_sizes(settings, shards)] == [
        (len(one.train.y), len(one.validation.y), len(one.test.y)) for one in loaded
    ]


def test_share_sizes_are_computed_without_reading_pixels(monkeypatch):
    settings, shards = DataSettings(domain="optdigits", parts=3), Shards()
    monkeypatch.setattr(ImagesInMemory, "samples", None)
    assert len(share_sizes(settings, shards)) == 3


@pytest.mark.parametrize(
    ("parts", "changes"),
    [(2000, {}), (12, {"split": "dirichlet", "beta": 0.01}), (2000, {"own_test": 0.3, "validation": 0.5})],
)
def test_the_largest_number_of_parts_works_and_one_more_does_not(parts, changes):
    settings, shards = DataSettings(domain="optdigits", parts=parts, **changes), Shards()
    assert str(parts) in problem_of_division(settings, shards)
    most = most_parts(settings, shards)
    assert most > 1 and problem_of_division(replace(settings, parts=most), shards) == ""
    assert problem_of_division(replace(settings, parts=most + 1), shards)
