"""Tests that a coordinator can compute features from the answers of FedPall, as docs/security.md describes."""

import pytest
import torch
from torch.testing import assert_close

from protofleet.methods import fedpall
from protofleet.methods.contract.base import Ask, Reply, seeded
from protofleet.methods.maths.adversary import mixing_share
from protofleet.methods.maths.means import class_means
from protofleet.methods.parts.state import snapshot
from tests.methods.fedpall_halves import HYPER
from tests.methods.tiny import SHARDS, clients_of, member, server_of, shard

# The network is wide enough that the mask leaves out some numbers of each device.
MANY = {**SHARDS, "device-3": shard(3, (0, 1, 2) * 5), "device-4": shard(4, (1, 2) * 7)}


def sent_in_a_round(hyper):
    """Return the class means and mixed features that each device sends, and its features, which it does not send."""
    server, clients = server_of(fedpall.METHOD, hyper), clients_of(fedpall.METHOD, hyper, MANY)
    server.begin(1, [member(name, client) for name, client in sorted(clients.items())])
    story, found = server.round(), []
    ask = next(story)
    for _ in ("train", "mix"):
        replies = []
        for name, client in sorted(clients.items()):
            client.begin(1)
            client.receive(snapshot(ask.payload))
            replies.append(
                Reply(name, len(client.data.y), snapshot(client.run(Ask(ask.phase, snapshot(ask.payload)))))
            )
        found.append((ask, {reply.device: reply.payload for reply in replies}))
        if ask.phase == "train":
            ask = story.send(replies)
    return *found, {name: client.features() for name, client in clients.items()}


def unmixed(means, prototypes, mixed):
    """Compute alpha, the kept numbers and the features, only from c_n^k, G^k and the mixed rows.

    For numbers that are not masked, the mean of the mixed rows of a class is alpha c + (1 - alpha) G. This gives many
    equations with one unknown.
    """
    classes = len(prototypes)
    kept = (mixed["features"] != 0).any(dim=0)
    middles, counts = class_means(mixed["features"], mixed["labels"], classes)
    held = counts > 0
    gap, moved = (means - prototypes)[held][:, kept], (middles - prototypes)[held][:, kept]
    alpha = round(float((gap * moved).sum() / gap.square().sum()), fedpall.Hyper.alpha_round)
    rows = (mixed["features"] - (1 - alpha) * prototypes[mixed["labels"]]) / alpha
    return alpha, kept, torch.where(kept, rows, torch.nan)


@pytest.mark.parametrize("mask", ["bernoulli", "exact"])
def test_a_coordinator_can_compute_the_mixing_share_and_each_number_without_a_mask(mask):
    hyper = fedpall.Hyper(**{**vars(HYPER), "mask": mask})
    (_, means), (asked, mixed), features = sent_in_a_round(hyper)
    prototypes, _ = class_means(asked.payload["prototypes"], asked.payload["labels"], 3)
    read = total = 0
    for name, z in features.items():
        own, _ = class_means(means[name]["prototypes"], means[name]["labels"], 3)
        alpha, kept, found = unmixed(own, prototypes, mixed[name])
        drawn = mixing_share(
            hyper.alpha_low, hyper.alpha_high, hyper.alpha_round, seeded(7, 1, name, "alpha")
        )
        assert alpha == drawn
        assert_close(found[:, kept], z[:, kept], rtol=1e-4, atol=1e-5)
        read, total = read + int(kept.sum()) * len(z), total + z.numel()
    # A mask leaves out few of six numbers; of many numbers it keeps the share beta, 0.9.
    assert read / total >= 0.6


def test_the_mask_keeps_nine_in_ten_numbers_of_the_features():
    """A mask keeps nine in ten of 2,048 numbers, which is the paper's size."""
    kept = fedpall.MASKS["bernoulli"](2048, 0.9, torch.Generator().manual_seed(1))
    assert 0.88 < float(kept.mean()) < 0.92
