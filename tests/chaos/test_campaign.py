"""The runs that a campaign makes from a seed."""

import contextlib

import pytest

from protofleet.edge_client.data.shard import load_shard
from protofleet.methods.contract.bridge import to_numpy
from tests.chaos.campaign import SAMPLES, Campaign, samples_of

BLOCK = 64 << 10


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_in_nine_runs_each_method_meets_each_kind_of_sample(seed):
    met = {(number % len(Campaign.runs), str(samples_of(seed, number))) for number in range(1, 10)}
    assert len(met) == len(Campaign.runs) * len(SAMPLES) == 9


def test_devices_have_the_samples_of_their_runs_plan_and_answers_are_four_blocks(tmp_path):
    campaign = Campaign(tmp_path, 1, devices=4, rounds=2, pause=1.0, secluded=False)
    with contextlib.ExitStack() as stack:
        for line in campaign.lines.values():
            stack.callback(line.close)
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
