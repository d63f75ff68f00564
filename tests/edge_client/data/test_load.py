"""The same settings give the same tensors on every machine, with scale, sizes, limits and held-out samples."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from protofleet.edge_client.data.catalog import domains, names
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.scaling import LEVELS
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard
from protofleet.methods.nets.catalog import build
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.edge_client.data.files import colours, write_class_folders

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Return a folder with 40, 30 and 20 pictures of three classes, for training and test together."""
    root = tmp_path_factory.mktemp("pictures")
    write_class_folders(root, {"a": 40, "b": 30, "c": 20})
    return root


def shard(root, **more):
    return load_shard(DataSettings(source="folder", root=str(root), **{"size": 8, **more}))


def test_black_is_minus_one_and_white_is_one():
    assert LEVELS[0] == -1 and LEVELS[255] == 1
    assert np.allclose(LEVELS, np.linspace(-1, 1, 256), atol=1e-7)


def test_tensors_have_the_types_and_shapes_that_networks_need(pictures):
    found = shard(pictures, size=12)
    for part in (found.train, found.validation, found.test):
        assert part.x.dtype == torch.float32 and part.y.dtype == torch.int64
        assert part.x.shape == (len(part.y), 3, 12, 12) and part.x.is_contiguous()


def test_every_label_stays_with_its_picture(pictures):
    found = shard(pictures, seed=5)
    for part in (found.train, found.validation, found.test):
        assert [c for c, _, _ in colours(part)] == part.y.tolist()


@given(
    split=st.sampled_from(["domain", "iid"]),
    parts=st.integers(1, 4),
    validation=st.floats(0, 0.5),
    seed=st.integers(-(1 << 63), (1 << 64) - 1),
)
@settings(max_examples=15, deadline=None)
def test_clients_together_have_every_training_picture_once(pictures, split, parts, validation, seed):
    shared = {"split": split, "parts": parts, "validation": validation, "seed": seed}
    found = [shard(pictures, part=part, **shared) for part in range(parts)]
    mine = [colour for each in found for part in (each.train, each.validation) for colour in colours(part)]
    tested = {tuple(sorted(colours(each.test))) for each in found}
    assert len(mine) == len(set(mine)) == 72
    assert len(tested) == 1 and not set(mine) & set(tested.pop())


def test_the_validation_set_has_the_class_proportions_of_the_training_set(pictures):
    found = shard(pictures, validation=0.25)
    assert torch.bincount(found.validation.y).tolist() == [8, 6, 4]
    assert found.counts().tolist() == [24, 18, 12]


def test_class_counts_include_classes_without_samples(pictures):
    found = shard(pictures, split="dirichlet", beta=0.05, parts=2, part=0, validation=0.0)
    assert len(found.counts()) == found.classes == 3
    assert found.counts().sum() == len(found.train.y)


def test_a_limit_on_samples_balances_classes_but_keeps_a_requested_skew(pictures):
    even = shard(pictures, samples=30, validation=0.0)
    assert even.counts().tolist() == [10, 10, 10]
    mixed = shard(pictures, samples=36, validation=0.0, split="iid")
    assert mixed.counts().tolist() == [16, 12, 8]
    shared = {"split": "dirichlet", "beta": 0.3, "parts": 2, "part": 1, "validation": 0.0, "seed": 2}
    whole, cut = shard(pictures, **shared).counts(), shard(pictures, samples=12, **shared).counts()
    assert whole.max() > 2 * whole.min() and cut.sum() == 12
    assert ((cut - whole * 12 / whole.sum()).abs() <= 1).all()


def test_clients_of_a_domain_have_the_same_test_samples(pictures):
    first, second = (shard(pictures, test_samples=6, parts=2, part=part) for part in (0, 1))
    assert torch.equal(first.test.x, second.test.x) and torch.bincount(first.test.y).tolist() == [2, 2, 2]
    assert not set(colours(first.train)) & set(colours(second.train))


def test_training_samples_are_not_sorted_by_class(pictures):
    labels = shard(pictures).train.y.tolist()
    assert labels != sorted(labels)


def test_the_error_for_too_many_clients_proposes_fewer_parts(pictures):
    with pytest.raises(
        DataError, match=r"folder gives client 79 of 80 only \d training samples.*fewer parts"
    ):
        shard(pictures, parts=80, part=79)


def test_settings_without_a_domain_load_all_domains_together(all_digits):
    found = load_shard(DataSettings(root=str(all_digits), samples=120, validation=0.0))
    assert found.domain == "digits" and found.counts().tolist() == [12] * 10
    sizes = [
        len(load_shard(DataSettings(root=str(all_digits), domain=each, validation=0.0)).test.y)
        for each in domains("digits")
    ]
    assert len(load_shard(DataSettings(root=str(all_digits), validation=0.0, samples=20)).test.y) == sum(
        sizes
    )


PRINT = """
import sys, hashlib
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard
made = DataSettings(root=sys.argv[1], domain="optdigits", split="dirichlet", parts=3, part=1, samples=200)
found = load_shard(made)
parts = (found.train, found.validation, found.test)
print(hashlib.sha256(b"".join(t.numpy().tobytes() for part in parts for t in (part.x, part.y))).hexdigest())
print([name for name in ("torchvision", "scipy", "PIL", "sklearn", "matplotlib") if name in sys.modules])
"""


@pytest.mark.slow
def test_other_processes_load_the_same_bytes_without_needless_imports(all_digits):
    command = [sys.executable, "-c", PRINT, str(all_digits)]
    told = {
        subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert told.pop().splitlines()[1] == "[]"


def test_every_source_names_its_domains():
    assert len(names()) == 18 and "digits" in names()
    assert domains("pacs") == ("art_painting", "cartoon", "photo", "sketch")
    assert domains("mnist") == ("mnist",) and domains("folder") == ()
    with pytest.raises(ValueError, match="'moon'.*digits, fashion"):
        domains("moon")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"domain": "moon"}, "'moon'; in digits there are mnist, optdigits"),
        ({"source": "folder", "domain": "../other"}, "'../other', it must be the plain name"),
        ({"part": -1}, "part is -1, it must be at least 0"),
        ({"beta": float("nan")}, "beta is nan, it must be at least 0.001 and at most 1_000_000"),
        ({"beta": -1.0}, "beta is -1.0, it must be at least 0.001"),
        ({"validation": -0.1}, "validation is -0.1, it must be at least 0 and at most 0.9"),
        ({"size": 4000}, "size is 4000, it must be at least 8 and at most 512"),
        ({"classes": ("a", "a")}, "at least two classes, each only once"),
    ],
)
def test_the_error_for_an_impossible_setting_states_the_limit(wrong, message):
    with pytest.raises(ValueError) as error:
        DataSettings(**wrong)
    assert message in str(error.value)


def test_data_settings_are_decoded_from_a_table_and_errors_name_their_path():
    table = {"source": "pacs", "domain": "photo", "classes": ["dog", "horse"], "samples": 300}
    assert decode(DataSettings, table, "data") == DataSettings(
        "pacs", domain="photo", classes=("dog", "horse"), samples=300
    )
    with pytest.raises(SettingsError, match="data"):
        decode(DataSettings, {"beta": 0.0}, "data")


def test_the_docs_name_each_data_setting_source_and_domain():
    text = "".join((ROOT / "docs" / page).read_text() for page in ("data.md", "your-data.md"))
    wanted = (
        [field.name for field in fields(DataSettings)]
        + names()
        + [d for name in names() for d in domains(name)]
    )
    assert [word for word in wanted if word not in text] == []


def test_one_channel_is_the_luma_of_three_channels():
    colour = load_shard(DataSettings(domain="mnistm", samples=20, test_samples=5, size=16))
    grey = load_shard(DataSettings(domain="mnistm", samples=20, test_samples=5, size=16, channels=1))
    assert grey.train.x.shape == (*colour.train.x.shape[:1], 1, 16, 16)
    share = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    rounding = 1 / 255 + 1e-6  # half a shade of 255, on a scale of 2
    assert (grey.train.x - (colour.train.x * share).sum(1, keepdim=True)).abs().max() <= rounding
    assert torch.equal(grey.train.y, colour.train.y)


def test_grey_images_with_three_channels_take_the_memory_of_one_channel(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (100, 16, 16), np.uint8)
    for i, pixels in enumerate(values):
        folder = tmp_path / "ab"[i % 2]
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.stack([pixels] * 3, -1)).save(folder / f"{i:04}.png")
    part = shard(tmp_path, size=16, validation=0.0).train
    assert part.x.shape == (80, 3, 16, 16) and part.x.untyped_storage().nbytes() == 80 * 16 * 16 * 4
    dense, rows = part.x.clone(memory_format=torch.contiguous_format), torch.randperm(80)[:64]
    assert torch.equal(part.x, dense) and part.x[rows].stride() == dense[rows].stride()
    net = build("cnn23", classes=2, image=(3, 16, 16))
    assert torch.equal(net(part.x[:50]), net(dense[:50]))


def test_one_coloured_image_among_grey_ones_keeps_its_colours(tmp_path):
    write_class_folders(tmp_path, {"a": 5, "b": 1})
    Image.new("RGB", (16, 12), (7, 7, 7)).save(tmp_path / "a" / "0000.png")
    found = shard(tmp_path, validation=0.0)
    assert (7, 7, 7) in colours(found.train) + colours(found.test)
    assert (0, 3, 0) in colours(found.train) + colours(found.test)


def test_grey_values_are_equal_with_three_channels_and_with_one():
    three, one = (load_shard(DataSettings(domain="mnist", samples=10, size=28, channels=n)) for n in (3, 1))
    assert torch.equal(three.train.x[:, :1], one.train.x)


def test_two_channels_are_refused():
    with pytest.raises(ValueError, match="channels is 2, it must be 1 .grey. or 3"):
        DataSettings(channels=2).check_shape()
