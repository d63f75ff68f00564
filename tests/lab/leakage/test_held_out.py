import numpy as np
import torch

from protofleet.edge_client.data.shard import TensorSamples
from protofleet.lab.leakage.domain_samples import DomainSamples
from protofleet.lab.leakage.held_out import content_hashes, never_sent, same_mix, unused
from protofleet.lab.leakage.maths.membership import LEAST_OTHERS
from tests.lab.leakage.observations import small


def samples(seed, count, classes=4):
    generator = torch.Generator().manual_seed(seed)
    return TensorSamples(torch.randn(count, 3, generator=generator), torch.arange(count) % classes)


def joined(*parts):
    return TensorSamples(torch.cat([one.x for one in parts]), torch.cat([one.y for one in parts]))


def test_a_candidate_with_the_content_of_a_member_is_left_out():
    members, fresh = samples(0, 40), samples(1, 400)
    found = never_sent(members, joined(members, fresh))
    seen = set(content_hashes(members.x))
    assert not seen & set(content_hashes(found.others.x))
    assert not seen & set(content_hashes(found.auxiliary.x))


def test_each_content_is_used_only_once_and_never_in_both_sets():
    fresh = samples(1, 400)
    found = never_sent(samples(0, 40), joined(fresh, fresh))
    others, auxiliary = (content_hashes(part.x) for part in (found.others, found.auxiliary))
    assert len(set(others)) == len(others) and len(set(auxiliary)) == len(auxiliary)
    assert not set(others) & set(auxiliary)


def test_non_members_have_the_same_class_shares_as_the_members():
    members = joined(samples(0, 40, classes=2), samples(2, 20, classes=1))  # 40 of class 0 and 20 of class 1
    found = never_sent(members, samples(1, 4_000))
    shares = [np.bincount(one.y, minlength=4) / len(one.y) for one in (members, found.others)]
    assert np.abs(shares[0] - shares[1]).max() < 0.01
    assert len(found.others.y) >= LEAST_OTHERS


def test_a_class_with_few_candidates_limits_the_samples_of_all_classes():
    labels = np.array([0] * 100 + [1] * 3)
    chosen = same_mix(labels, [10, 10], 100, np.random.default_rng(0))
    assert np.bincount(labels[chosen]).tolist() == [3, 3]


def test_a_candidate_is_left_out_if_an_image_of_the_same_digit_is_used():
    """An image of mnistm shows a digit of mnist; if the digit was used, the image is not a valid non-member."""
    found = unused([b"a", b"b", b"c"], {b"x"}, {b"b": [b"x"], b"c": [b"y"]})
    assert found.tolist() == [0, 2]


def test_no_digit_of_mnist_is_a_member_in_one_domain_and_a_non_member_in_the_other():
    experiment = small("fedavg", devices=("mnist", "mnistm"), samples=200)
    truths = DomainSamples(experiment.shards, experiment.own_plugins.allowed()).truths()
    alone = small("fedavg", devices=("mnistm",), samples=200)
    others = DomainSamples(alone.shards, alone.own_plugins.allowed()).truths()
    assert len(truths["mnistm"].held_out.y) < len(others["mnistm"].held_out.y)
    used = set(content_hashes(truths["mnist"].samples.x))
    assert not used & set(content_hashes(truths["mnist"].held_out.x))


def test_each_content_of_a_domain_with_copies_is_used_once():
    experiment = small("fedavg", devices=("mfeat",), samples=200)
    truth = DomainSamples(experiment.shards, experiment.own_plugins.allowed()).truths()["mfeat"]
    hashes = content_hashes(truth.held_out.x)
    assert len(set(hashes)) == len(hashes)
