"""Tests that the settings of a device limit the work of any plan, for each method."""

from dataclasses import replace

import pytest
import torch

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.limits import (
    DeviceLimits,
    HalfBuilder,
    activation_bytes,
    total_memory,
)
from protofleet.edge_client.trainer.deadline import Deadline
from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.plan import Network
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.plugins.file import from_file
from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.wire.reasons import DisconnectReason
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import POLICY, assert_same, part, plan, shard, simulation

CPU = torch.device("cpu")


def builder(limits=None, train=None, network=None):
    return HalfBuilder(limits or DeviceLimits(), train or shard(0).train, "a", network, CPU)


@pytest.mark.parametrize("method", names())
def test_a_half_within_the_limits_equals_a_half_that_is_built_without_limits(method):
    made, plain = builder().build(plan(method)), plan(method).client_half(shard(0).train, "a")
    states = made.state(), plain.state()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for one, other in zip(made.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert made.model.training == plain.model.training


@pytest.mark.parametrize("width", [10**7, 10**9, 10**15, 10**18, 10**30])
@pytest.mark.parametrize("setting", ["feature_size", "embedding_size"])
def test_a_network_of_any_width_is_refused_in_one_line(width, setting):
    wide = replace(plan("fedavg"), network=Network("mlp", **{setting: width}))
    with pytest.raises(SettingsError, match=r"limits.memory_bytes = 1,000,000,000|cannot be made") as error:
        builder(DeviceLimits(memory_bytes=10**9)).build(wide)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", [{"size": 10**5}, {"size": 10**9}, {"seed": 2**70}])
def test_a_size_or_seed_beyond_all_bounds_is_refused_in_one_line(change):
    with pytest.raises(ValueError, match=r"limits.memory_bytes|cannot be made|at most 65_536") as error:
        builder(DeviceLimits(memory_bytes=10**9)).build(
            replace(plan("fedavg"), network=Network("cnn4"), **{"size": 16, **change})
        )
    assert "\n" not in str(error.value)


def test_the_memory_of_a_batch_is_limited_by_the_number_of_samples():
    many = plan("fedavg", batch=10**9)
    train = part(200, 1, 0.0)
    one = activation_bytes(many.client_half(train, "a"), train.x, many.input_shape)
    model = many.model()
    least = 4 * sum(value.nbytes for value in model.state_dict().values()) + 200 * (one + 4 * 16)
    assert one >= 4 * (32 + 16) and builder(DeviceLimits(memory_bytes=least), train).build(many)
    with pytest.raises(SettingsError, match=f"takes {least:,} bytes of memory"):
        builder(DeviceLimits(memory_bytes=least - 1), train).build(many)


def test_the_memory_of_one_sample_does_not_depend_on_the_number_of_samples():
    few, many = part(2, 1, 0.0), part(2000, 1, 0.0)
    made = plan("fedavg")
    half, shape = made.client_half(few, "a"), made.input_shape
    assert activation_bytes(half, few.x, shape) == activation_bytes(half, many.x, shape) < many.x.nbytes


# FedGen's of 32 numbers and 3 classes, with the statistics of its 512; FedKD's map of 16 numbers to as many.
GENERATOR = 4 * ((32 + 3) * 512 + 4 * 512 + 512 * 16 + 16) + 8
MAP = 4 * 16 * 16


@pytest.mark.parametrize(
    ("method", "networks", "trained", "besides"),
    [
        ("apfl", 3, 2, 0),
        ("ditto", 2, 2, 0),
        ("fml", 2, 2, 0),
        ("moon", 3, 1, 0),
        ("fedgen", 1, 1, GENERATOR),
        ("fedkd", 2, 2, MAP),
    ],
)
def test_the_memory_includes_each_network_that_is_held_and_each_pass_that_is_trained(
    method, networks, trained, besides
):
    alone, several, train = plan("fedavg"), plan(method), part(20, 1, 0.0)
    halves, shape = [made.client_half(train, "a") for made in (alone, several)], alone.input_shape
    one, more = (activation_bytes(half, train.x, shape) for half in halves)
    assert more == trained * one
    model = sum(value.nbytes for value in alone.model().state_dict().values())
    least = 4 * (networks * model + besides) + 20 * 4 * 16 + 8 * more
    assert builder(DeviceLimits(memory_bytes=least), train).build(several)
    with pytest.raises(SettingsError, match=f"takes {least:,} bytes of memory"):
        builder(DeviceLimits(memory_bytes=least - 1), train).build(several)


@pytest.mark.parametrize(("batch", "step"), [(6, 8), (24, 24)])
def test_the_memory_includes_public_images_and_their_cosines_and_the_larger_batch(batch, step):
    train, public = part(20, 1, 0.0), PublicSet(samples=48, batch=batch)
    made = replace(plan("fcclplus"), public=public)
    model = sum(value.nbytes for value in made.model().state_dict().values())
    one = activation_bytes(plan("fedavg").client_half(train, "a"), train.x, made.input_shape)
    images, cosines = 4 * 48 * 3 * 8 * 8, 4 * 48 * (batch - 1)
    least = 2 * 4 * model + 20 * 4 * 16 + images + cosines + step * one
    assert builder(DeviceLimits(memory_bytes=least), train).build(made)
    with pytest.raises(SettingsError, match=f"takes {least:,} bytes of memory"):
        builder(DeviceLimits(memory_bytes=least - 1), train).build(made)


def test_too_many_public_images_are_refused_before_one_is_made():
    def images(size):
        raise AssertionError("no image must be made")

    public = PublicSet("digits", samples=1 << 20, batch=2, sha256="ab" * 32)
    made = replace(plan("fcclplus"), public=public)
    few = HalfBuilder(
        DeviceLimits(memory_bytes=10**8), shard(0).train, "a", None, CPU, public=lambda of: images
    )
    with pytest.raises(SettingsError, match=r"limits.memory_bytes = 100,000,000"):
        few.build(made)


def test_images_that_do_not_fit_the_network_are_refused_before_the_training():
    words = (
        r"does not take this device's images \[3, 8, 8\], because the run's samples are images \[3, 16, 16\]; set "
        r"data.size = 16 on this device if its source can give such samples, or size = 8 in the run"
    )
    with pytest.raises(SettingsError, match=words):
        builder().build(replace(plan("fedavg"), size=16))


OWN = """
from torch import nn
from protofleet.methods.nets.base import Net
from protofleet.methods.nets.own import network

class Flat(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :12]{fault}

NETWORK = network(lambda shape, classes, feature_size: Net(Flat(), {said}, classes))
"""


@pytest.mark.parametrize(
    ("said", "fault", "told"),
    [
        (13, "", r": the run's network gives \[12\] numbers for a sample before its head, and its Net says feature_"),
        (12, " @ x", r":8: the run's network does not take this device's images \[3, 8, 8\]: "),
    ],
)  # fmt: skip
def test_an_error_in_a_plug_in_network_names_its_file(tmp_path, said, fault, told):
    path = tmp_path / "own.py"
    path.write_text(OWN.format(said=said, fault=fault))
    made, _ = from_file(path, None)
    with pytest.raises(SettingsError, match="/own.py" + told):
        builder().build(replace(plan("fedavg"), network=Network("own", plugin=made.sha256)))


def test_the_error_for_samples_of_a_wrong_size_names_no_line_of_a_plug_in_network(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN.format(said=3 * 16 * 16, fault="").replace("[:, :12]", ""))
    made, _ = from_file(path, None)
    own = Network("own", plugin=made.sha256)
    with pytest.raises(
        SettingsError, match=r"/own.py: the run's network does not take this device's images \[3, 8, 8"
    ):
        builder().build(replace(plan("fedavg"), network=own, size=16))


def test_disk_bytes_and_epochs_have_limits():
    with pytest.raises(SettingsError, match=r"which is more than this device's limits.disk_bytes = 9,999"):
        builder(DeviceLimits(disk_bytes=9999)).build(plan("fedproto"))
    with pytest.raises(
        SettingsError, match=r"takes 7 epochs, which is more than this device's limits.epochs = 6;"
    ):
        builder(DeviceLimits(epochs=6)).build(plan("fedavg", epochs=7))


def test_the_settings_of_a_device_have_a_table_limits():
    made = decode(DeviceSettings, {"name": "a", "limits": {"memory_bytes": 5, "epochs": 7}})
    assert made.limits == DeviceLimits(memory_bytes=5, epochs=7)
    for wrong in ({"epochs": 0}, {"memory_bytes": -1}, {"work_seconds": 0.0}, {"disk_bytes": 0}):
        with pytest.raises(ValueError, match=r"\w+ is .*, it must be at least"):
            DeviceLimits(**wrong)
    assert total_memory(CPU) > 1 << 28


def test_work_beyond_its_deadline_ends_at_the_next_check():
    now = [0.0]
    deadline = Deadline(lambda: now[0])

    def work(seconds):
        with deadline.running(5.0):
            now[0] += seconds
            deadline.check()

    work(5.0)
    with pytest.raises(TrainerDiedError, match="training_died: the work did not end within 5 s") as death:
        work(5.1)
    assert death.value.why is DisconnectReason.TRAINING_DIED
    now[0] += 100.0
    deadline.check()  # Between two pieces of work there is no deadline.


def test_a_half_whose_work_was_aborted_continues_from_its_last_durable_state(tmp_path):
    """The half trained and then died, so no later answer may contain what it learned until then."""
    policy = RunPolicy(
        **{**{f: getattr(POLICY, f) for f in POLICY.__dataclass_fields__}, "patience_seconds": 600.0}
    )
    sim = simulation(tmp_path / "run", "fedproto", policy=policy)
    deaths, runner = iter([True]), sim.agents["device-1"].tasks.runner
    start_job = runner.start_job

    def start(plan):
        job = start_job(plan)
        run = job.run

        def once(phase, number, received):
            made = run(phase, number, received)
            if number == 2 and next(deaths, False):
                raise TrainerDiedError(DisconnectReason.TRAINING_DIED, "the work did not end within 1 s")
            return made

        job.run = once
        return job

    runner.start_job = start
    sim.run()
    assert next(deaths, None) is None and sim.service.finished
    assert_same(sim, simulation(tmp_path / "other", "fedproto", policy=policy).run())


@pytest.mark.parametrize(
    ("method", "settings", "takes"),
    [
        ("fedrep", {"head_epochs": 990, "base_epochs": 20}, "1,010"),
        ("fedrep", {"epochs": 1000}, "1,001"),
        ("ditto", {"epochs": 501}, "1,002"),
        ("ditto", {"epochs": 990, "personal_epochs": 11}, "1,001"),
        ("rucr", {"epochs": 5, "head_epochs": 996}, "1,001"),
        ("fedprox", {"epochs": 1001}, "1,001"),
    ],
)
def test_the_limit_of_epochs_applies_to_the_sum_of_all_epoch_settings(method, settings, takes):
    """Earlier only `epochs` was checked, so the two epochs settings of FedRep passed any limit."""
    with pytest.raises(
        SettingsError, match=rf"takes {takes} epochs, which is more than this device's limits.epochs = 1,000"
    ):
        builder().build(replace(plan(method), hyper=settings))


def test_server_epochs_do_not_count_for_the_limit_of_a_device():
    builder(DeviceLimits(epochs=50)).build(replace(plan("fedtgp"), hyper={"server_epochs": 60}))
