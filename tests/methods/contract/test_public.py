"""Tests of public images: all devices draw the same images, use fixed batches and compare their hash."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from protofleet.cli.main import main
from protofleet.coordinator.config import CoordinatorSettings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shards
from protofleet.edge_client.public_images import public_images
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.plan import Network, Plan, agreed_public_set, read_plan
from protofleet.methods.contract.public import HASHED, PublicSet, drawn, sha256_of
from protofleet.protocol.settings.reader import SettingsError, decode, parse_toml
from tests.support.small_federation import shard

# Add lines, but never change one, because the devices of a fleet run different versions.
USUAL = "713c6a141c3cbcc88425c0385363e75647a65517a3f588b50e474211fad09df3"
MNIST = PublicSet("digits", "mnist", samples=40, batch=16, seed=3)
DATA = DataSettings("digits", domain="mnist", samples=20, test_samples=10)


def plan(public=None, **more):
    return Plan("fcclplus", 3, 1, size=8, network=Network("mlp"), public=public, **more)


def half(made, public=None):
    return made.client_half(shard(0).train, "device-0", public=public)


@pytest.mark.parametrize(
    ("samples", "batch", "sizes"),
    [
        (512, 64, (64,) * 8),
        (130, 64, (64, 64, 2)),
        (129, 64, (64, 65)),
        (65, 64, (65,)),
        (3, 64, (3,)),
        (2, 2, (2,)),
        (3, 2, (3,)),
    ],
)
def test_no_batch_has_only_one_image_and_no_image_is_left_out(samples, batch, sizes):
    public = PublicSet(samples=samples, batch=batch)
    assert public.batches == sizes and sum(sizes) == samples
    assert public.pairs == sum(n * n - n for n in sizes)


def test_the_generated_images_are_the_same_as_in_earlier_versions():
    images = PublicSet().draw(HASHED)
    assert images.shape == (512, 3, 32, 32) and images.dtype == np.uint8
    assert sha256_of(images) == USUAL


def test_the_generated_images_differ_from_each_other_and_between_seeds():
    images = drawn(40, 0, 16, 16)
    assert len({image.tobytes() for image in images}) == 40
    assert not (drawn(40, 1, 16, 16) == images).all()
    assert images.std() > 30
    assert (drawn(12, 0, 16, 16).mean(axis=(1, 2, 3)) != drawn(12, 1, 16, 16).mean(axis=(1, 2, 3))).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_device_has_the_public_images_in_the_size_and_channels_of_the_run(channels):
    batches = half(plan(PublicSet(samples=9, batch=6), channels=channels)).public
    assert [tuple(x.shape) for x in batches] == [(6, channels, 8, 8), (3, channels, 8, 8)]
    whole = torch.cat(list(batches))
    assert whole.dtype is torch.float32 and -1 <= float(whole.min()) < float(whole.max()) <= 1


def test_the_server_half_knows_the_number_of_public_images():
    server = plan(PublicSet(samples=9, batch=6)).server_half()
    assert server.public.batches == (6, 3)


def test_a_coordinator_puts_the_hash_of_the_public_set_into_the_plan():
    table = {"name": "a", "rounds": 1, "classes": 4, "method": {"name": "fcclplus"}}
    made = decode(CoordinatorSettings, table).plan()
    assert made.public == PublicSet(sha256=USUAL)
    assert read_plan(made.encode()) == made and json.loads(made.encode())["public"]["sha256"] == USUAL
    assert decode(Experiment, table).plan.public == made.public
    assert made.digest != replace(made, public=replace(made.public, seed=1)).digest


def test_a_device_with_other_public_images_refuses_the_plan_with_both_hashes():
    other = plan(PublicSet(sha256="ab" * 32))
    with pytest.raises(
        SettingsError,
        match=f"sha256 {'ab' * 32}, but the public set of this device has {USUAL}: put the same files",
    ):
        half(other)


def test_a_public_set_of_files_without_a_hash_is_refused_with_the_command_for_it():
    with pytest.raises(
        SettingsError,
        match="public.sha256 is missing.*`protofleet public-set digits --domain mnist --samples 40",
    ):
        agreed_public_set("fcclplus", MNIST)
    table = {"source": "digits", "domain": "mnist"}
    settings = {"name": "a", "rounds": 1, "classes": 4, "method": {"name": "fcclplus"}, "public": table}
    with pytest.raises(SettingsError, match="public.sha256 is missing"):
        decode(CoordinatorSettings, settings)


def test_a_public_set_is_refused_for_a_method_that_uses_none():
    assert agreed_public_set("fedavg", None) is None
    with pytest.raises(SettingsError, match="fedavg uses no public set, .* shapes, 512 images.*fcclplus"):
        Plan("fedavg", 3, 1, public=PublicSet())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"samples": 1}, "samples is 1"),
        ({"batch": 1}, "batch is 1"),
        ({"samples": 1 << 20, "batch": 4096}, "similarities, but at most 16,777,216"),
        ({"domain": "mnist"}, "domain is 'mnist', but generated images have no domain"),
    ],
)
def test_an_impossible_public_set_is_refused_with_the_limit(setting, message):
    with pytest.raises((SettingsError, ValueError), match=message):
        PublicSet(**setting)


# Public images from a data source


def test_the_command_public_set_prints_settings_with_which_a_device_finds_the_images(capsys):
    command = ["public-set", "digits", "--domain", "mnist", "--samples", "40", "--batch", "16", "--seed", "3"]
    assert main(command) == 0
    public = decode(PublicSet, parse_toml(capsys.readouterr().out.encode(), "printed")["public"])
    assert replace(public, sha256="") == MNIST and len(public.sha256) == 64
    made = plan(agreed_public_set("fcclplus", public))
    found = half(made, public_images(made, DATA, Shards())).public
    assert [len(x) for x in found] == [16, 16, 8]
    again = public_images(made, DATA, Shards())(made.input_shape)
    assert torch.equal(torch.cat(list(found)), (torch.from_numpy(again) * 2.0 - 255) / 255)


def test_files_with_another_hash_than_that_of_the_run_are_refused():
    made = plan(replace(MNIST, sha256="cd" * 32))
    with pytest.raises(SettingsError, match="digits mnist, 40 images, seed 3.*put the same files"):
        half(made, public_images(made, DATA, Shards()))


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (
            replace(MNIST, samples=100_000),
            "mnist has 4,.* training samples, but public.samples is 100,000",
        ),
        (replace(MNIST, source="nothing"), "source is 'nothing'; there are digits"),
        (replace(MNIST, domain="nothing"), "domain is 'nothing'; in digits there are mnist"),
        (replace(MNIST, source="cifar100", domain=""), "cifar100, 40 images, seed 3.*there is no file"),
    ],
    ids=["too many", "source", "domain", "files"],
)
def test_a_device_without_the_public_images_refuses_the_plan_in_one_line(
    public, message, tmp_path, monkeypatch
):
    if public.source == "cifar100":
        monkeypatch.setenv("PROTOFLEET_DATA", str(tmp_path))
    made = plan(replace(public, sha256="cd" * 32))
    with pytest.raises(SettingsError, match=message) as found:
        half(made, public_images(made, DATA, Shards()))
    assert "\n" not in str(found.value)


def test_a_plan_with_a_public_set_of_files_is_refused_by_a_device_without_it():
    with pytest.raises(SettingsError, match="the run's public set is digits mnist, .*has no public set"):
        half(plan(MNIST))


def test_a_device_refuses_a_public_set_without_a_hash_only_if_it_is_of_files():
    """A plan from the wire may have no hash, even if our coordinators always send one."""
    made = read_plan(plan(MNIST).encode())
    with pytest.raises(
        SettingsError, match="public.sha256 is missing.*digits mnist, 40 images.*public-set digits"
    ):
        half(made, public_images(made, DATA, Shards()))
    assert half(read_plan(plan(PublicSet(samples=9, batch=6)).encode())).public


def test_generated_public_images_need_no_data_source():
    assert public_images(plan(), DATA, Shards()) is None
    assert public_images(plan(PublicSet(seed=4)), DATA, Shards()) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits", "--samples", "1"], "--samples: it is '1', it must be a whole number, at least 2"),
        (["nothing"], "public.source is 'nothing'; there are digits"),
        (["digits", "--domain", "x"], "public.domain is 'x'; in digits there are mnist"),
        (["--domain", "mnist"], "domain is 'mnist', but generated images have no domain"),
    ],
)
def test_the_command_public_set_refuses_wrong_options_in_one_line(words, message, capsys):
    assert main(["public-set", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
