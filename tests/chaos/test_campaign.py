"""The runs that a campaign makes from a seed."""

import contextlib

import pytest

from protofleet.edge_client.data.shard import load_shard
from protofleet.methods.contract.bridge import to_numpy
from tests.chaos.campaign import SAMPLES, Campaign, samples_of
from tests.chaos.queue_campaign import NAMES, QUEUES, QueueCampaign

BLOCK = 64 << 10


@contextlib.contextmanager
def made_campaign(kind, folder):
    campaign = kind(folder, 1, devices=4, rounds=8, pause=1.0, secluded=False)
    with contextlib.ExitStack() as stack:
        for line in campaign.lines.values():
            stack.callback(line.close)
        yield campaign


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_nine_runs_combine_each_method_with_each_kind_of_sample(seed):
    met = {(number % len(Campaign.runs), str(samples_of(seed, number))) for number in range(1, 10)}
    assert len(met) == len(Campaign.runs) * len(SAMPLES) == 9


def test_the_samples_fit_the_plan_and_the_weights_take_four_blocks(tmp_path):
    with made_campaign(Campaign, tmp_path) as campaign:
        made = [campaign.experiment(number) for number in (1, 2, 3)]
    ranks = set()
    for experiment in made:
        shape = experiment.plan.input_shape.axes
        ranks.add(len(shape))
        for settings in experiment.shards.values():
            part = load_shard(settings).train
            assert tuple(part.x.shape[1:]) == shape and len(part.y.unique()) == experiment.classes
        weights = sum(value.nbytes for value in to_numpy(experiment.plan.model().state_dict()).values())
        assert 3 * BLOCK < weights <= 4 * BLOCK
    assert ranks == {1, 2, 3}


def test_the_runs_of_a_queue_have_different_plans_and_the_same_samples(tmp_path):
    with made_campaign(QueueCampaign, tmp_path) as campaign:
        for number in range(1, len(QUEUES) + 1):
            made = campaign.experiments(number)
            assert [(one.name, one.rounds) for one in made] == list(zip(NAMES, (8, 8, 2), strict=True))
            assert len({one.plan.encode() for one in made}) == len(made)
            assert made[0].shards == made[1].shards == made[2].shards
        campaign.choose("fedplcc")
        assert campaign.queues and all("fedplcc" in [kind[0] for kind in kinds] for kinds in campaign.queues)
