"""A client can hold out its own test set, and can have a fraction of a domain."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard
from tests.edge_client.data.files import colours, write_class_folders

COUNTS = {"a": 80, "b": 60, "c": 40}
HALF = {"a": 16, "b": 12, "c": 8}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Return a folder with 180 pictures of three classes, of which a fifth is published for the test."""
    root = tmp_path_factory.mktemp("pictures")
    write_class_folders(root, COUNTS)
    return root


def shards(root, parts, **more):
    common = {"source": "folder", "root": str(root), "size": 8, "validation": 0.0, "parts": parts, **more}
    return [load_shard(DataSettings(part=part, **common)) for part in range(parts)]


def counts(part):
    return torch.bincount(part.y, minlength=3).tolist()


@given(
    split=st.sampled_from(["domain", "iid", "dirichlet"]),
    parts=st.integers(1, 4),
    own_test=st.floats(0.1, 0.6),
    seed=st.integers(-(1 << 63), (1 << 64) - 1),
)
@settings(max_examples=15, deadline=None)
def test_each_published_sample_is_in_exactly_one_training_or_own_test_set(
    pictures, split, parts, own_test, seed
):
    found = shards(pictures, parts, split=split, beta=5.0, own_test=own_test, seed=seed)
    seen = [colour for shard in found for part in (shard.train, shard.test) for colour in colours(part)]
    assert len(seen) == len(set(seen)) == 180
    for shard in found:
        held = len(shard.train.y) + len(shard.test.y)
        assert len(shard.test.y) == round(own_test * held)


def test_an_own_test_has_the_class_proportions_of_the_training_set(pictures):
    for shard in shards(pictures, 3, split="dirichlet", beta=0.5, own_test=0.25):
        learnt, tested = torch.tensor(counts(shard.train)), torch.tensor(counts(shard.test))
        assert (tested - (learnt + tested) * 0.25).abs().max() <= 1
        assert counts(shard.train) != counts(shards(pictures, 1, own_test=0.25)[0].train)


def test_a_client_without_its_own_test_has_the_published_test(pictures):
    (found,) = shards(pictures, 1)
    assert counts(found.test) == list(HALF.values()) and len(found.train.y) == 144


def test_a_client_with_its_own_test_also_trains_on_published_test_pictures(tmp_path):
    for half, n in (("train", 30), ("test", 10)):
        write_class_folders(tmp_path / half, {"a": n, "b": n})
    (published,), (own,) = shards(tmp_path, 1), shards(tmp_path, 1, own_test=0.25)
    assert (len(published.train.y), len(published.test.y)) == (60, 20)
    assert (len(own.train.y), len(own.test.y)) == (60, 20)
    assert sorted(colours(own.train)) != sorted(colours(published.train))


def test_a_limit_on_own_test_samples_leaves_training_and_validation_unchanged(pictures):
    (found,) = shards(pictures, 1, own_test=0.5, test_samples=30, validation=0.2)
    assert [len(part.y) for part in (found.train, found.validation, found.test)] == [72, 18, 30]


def test_the_seed_determines_the_samples_of_the_own_test(pictures):
    first, again, other = (shards(pictures, 2, own_test=0.25, seed=seed)[0] for seed in (1, 1, 2))
    assert colours(first.test) == colours(again.test) != colours(other.test)


def test_the_error_for_a_share_without_test_samples_proposes_a_larger_own_test(pictures):
    with pytest.raises(DataError, match=r"gives client 0 of 60 no test samples.*larger own_test"):
        shards(pictures, 60, own_test=0.1)


@given(parts=st.integers(1, 4), fraction=st.floats(0.05, 0.25), split=st.sampled_from(["domain", "iid"]))
@settings(max_examples=15, deadline=None)
def test_clients_have_disjoint_fractions_of_the_domain_and_the_whole_test(pictures, parts, fraction, split):
    found = shards(pictures, parts, fraction=fraction, split=split)
    seen = [colour for shard in found for colour in colours(shard.train)]
    assert len(seen) == len(set(seen))
    for shard in found:
        assert abs(len(shard.train.y) - fraction * 144) <= 1 + fraction * parts
        assert counts(shard.test) == list(HALF.values())  # the test is not reduced


def test_a_fraction_keeps_class_proportions_and_a_sample_limit_balances_them(pictures):
    (tenth,), (same,) = shards(pictures, 1, fraction=0.25), shards(pictures, 1, samples=36)
    assert counts(tenth.train) == [16, 12, 8] and counts(same.train) == [12, 12, 12]
    (both,) = shards(pictures, 1, fraction=0.5, samples=36)
    assert counts(both.train) == [12, 12, 12]


def test_a_fraction_is_taken_from_the_samples_left_for_training(pictures):
    """FedPall takes a fifth of all samples for the test, and a tenth of the rest for each client."""
    (found,) = shards(pictures, 1, own_test=0.2, fraction=0.1)
    assert (len(found.train.y), len(found.test.y)) == (round(0.1 * 0.8 * 180), 36)


def test_a_fraction_keeps_the_skewed_sizes_of_shares(pictures):
    skewed = {"split": "dirichlet", "beta": 0.5, "seed": 3}
    whole, tenth = shards(pictures, 3, **skewed), shards(pictures, 3, fraction=0.2, **skewed)
    for all_of_it, some in zip(whole, tenth, strict=True):
        assert len(some.train.y) == round(0.2 * 3 * len(all_of_it.train.y))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fraction": 0.0}, "fraction is 0.0, it must be above 0 and at most 1, or left out"),
        (
            {"fraction": 0.3, "parts": 4},
            "fraction is 0.3, it must be above 0 and at most 0.25, which is an equal share for each of 4",
        ),
        ({"fraction": float("nan")}, "fraction is nan"),
        ({"own_test": 0.0}, "own_test is 0.0, it must be above 0 and at most 0.9, or left out"),
        ({"own_test": 1.0}, "own_test is 1.0, it must be"),
    ],
)
def test_the_error_for_an_impossible_fraction_or_own_test_states_the_limit(wrong, message):
    with pytest.raises(ValueError) as error:
        DataSettings(**wrong)
    assert message in str(error.value)


def test_three_parts_can_have_a_third_each():
    assert DataSettings(fraction=1 / 3, parts=3).fraction == 1 / 3
