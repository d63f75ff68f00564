"""The six-domain digits are the same everywhere, and shares are disjoint, complete and repeatable."""

import hashlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofleet.edge_client.data import shard
from protofleet.edge_client.data.catalog import domains
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shards, load_shard
from tests.support.few_methods import few


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("digits")


def digits(cache, domain="", **more):
    return load_shard(DataSettings(source="digits", root=str(cache), domain=domain, **more))


@pytest.mark.parametrize("domain", few(domains("digits"), 2))
def test_a_domain_has_all_classes_and_is_the_same_when_loaded_again(cache, domain):
    found = digits(cache, domain)
    assert found.classes == 10 and found.train.x.shape[1:] == (3, 32, 32)
    assert found.counts().min() > 100 and set(found.test.y.tolist()) == set(range(10))
    again = digits(cache, domain)
    assert torch.equal(found.train.x, again.train.x) and torch.equal(found.test.y, again.test.y)


def test_a_damaged_cached_file_is_built_again(cache):
    first = digits(cache, "optdigits")
    (path,) = cache.glob("optdigits-*.npz")
    whole = path.read_bytes()
    data = bytearray(whole)
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert torch.equal(digits(cache, "optdigits").train.x, first.train.x)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("split", ["domain", "iid", "dirichlet"])
def test_a_share_of_preloaded_data_equals_a_share_that_is_loaded_alone(cache, split, monkeypatch):
    data = DataSettings(root=str(cache), domain="mfeat", split=split, parts=3, test_samples=50)
    before = Shards()
    before.load_common(data)
    alone = [load_shard(replace(data, part=part)) for part in range(3)]
    monkeypatch.setattr(shard, "find", None)  # nothing is read again
    shared = [Shards(before).load(replace(data, part=part)) for part in range(3)]
    for one, other in zip(alone, shared, strict=True):
        for split in ("train", "validation", "test"):
            ours, theirs = getattr(one, split), getattr(other, split)
            assert torch.equal(ours.x, theirs.x) and torch.equal(ours.y, theirs.y)
    if data.split != "dirichlet":
        assert len({found.test.x.data_ptr() for found in shared}) == 1


def keys(part):
    return [hashlib.sha256(x.numpy().tobytes()).hexdigest() for x in part.x]


@pytest.mark.parametrize("split", ["domain", "iid", "dirichlet"])
def test_shares_are_disjoint_and_cover_all_training_samples(cache, split):
    whole = sorted(keys(digits(cache, "mfeat", validation=0.0).train))
    parts = [
        keys(digits(cache, "mfeat", validation=0.0, split=split, part=i, parts=4, seed=3).train)
        for i in range(4)
    ]
    assert sorted(k for part in parts for k in part) == whole
    assert sum(len(set(p)) for p in parts) == len(set(whole))


def test_training_validation_and_test_have_no_common_picture(cache):
    found = digits(cache, "synth", samples=600, validation=0.2)
    train, validation, test = (set(keys(p)) for p in (found.train, found.validation, found.test))
    assert not train & validation and not train & test and not validation & test
    assert len(found.train.y) + len(found.validation.y) == 600 and abs(len(found.validation.y) - 120) <= 1


def test_a_smaller_beta_gives_more_skewed_shares(cache):
    def skew(beta):
        shares = [
            digits(cache, "optdigits", split="dirichlet", beta=beta, part=i, parts=4, seed=1)
            for i in range(4)
        ]
        counts = torch.stack([s.counts() for s in shares]).double()
        return float((counts / counts.sum(0).clamp(min=1)).max(0).values.mean())

    assert skew(0.1) > skew(100.0) + 0.2


def test_samples_are_balanced_over_classes(cache):
    counts = digits(cache, "street", samples=100, validation=0.0).counts()
    assert counts.sum() == 100 and counts.max() - counts.min() <= 1


IMPOSSIBLE = [
    {"source": "moon"}, {"domain": "moon"}, {"split": "fair"}, {"part": 2, "parts": 2}, {"beta": 0.0},
    {"validation": 1.0}, {"size": 4}, {"samples": 1}, {"test_samples": 0}, {"classes": ("3",)},
]  # fmt: skip


@pytest.mark.parametrize("wrong", IMPOSSIBLE, ids=str)
def test_impossible_settings_are_refused_with_their_value(wrong):
    with pytest.raises(ValueError, match="is "):
        DataSettings(**wrong)


@settings(max_examples=25, deadline=None)
@given(
    parts=st.integers(1, 6), seed=st.integers(0, 99), split=st.sampled_from(["domain", "iid", "dirichlet"])
)
def test_the_same_settings_give_a_client_the_same_samples(cache, parts, seed, split):
    wanted = {"split": split, "parts": parts, "part": parts - 1, "seed": seed, "beta": 5.0, "samples": 40}
    one, other = digits(cache, "optdigits", **wanted), digits(cache, "optdigits", **wanted)
    assert torch.equal(one.train.x, other.train.x) and torch.equal(one.validation.y, other.validation.y)
