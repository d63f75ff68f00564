"""Each reader reads small files in the exact form in which its data set is published."""

import bz2
import gzip
import io
import pickle
import struct

import numpy as np
import pytest

from protofleet.edge_client.data.catalog import find, names
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard

PIL = pytest.importorskip("PIL.Image")


def load_all(source, root, **more):
    return load_shard(DataSettings(source=source, root=str(root), validation=0.0, **{"size": 32, **more}))


def idx(array):
    return (
        struct.pack(">BBBB", 0, 0, 8, array.ndim)
        + struct.pack(f">{array.ndim}i", *array.shape)
        + array.tobytes()
    )


def write_idx(folder, side, zipped):
    dice = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for stem, n in (("train", 40), ("t10k", 20)):
        images = dice.integers(0, 256, (n, side, side), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            data = idx(array)
            name = f"{stem}-{kind}-ubyte" + (".gz" if zipped else "")
            (folder / name).write_bytes(gzip.compress(data) if zipped else data)


@pytest.mark.parametrize("place", [".", "MNIST/raw", "raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_is_loaded_from_its_idx_files(tmp_path, place, zipped):
    write_idx(tmp_path / place, 28, zipped)
    found = load_all("mnist", tmp_path)
    assert found.train.x.shape == (40, 3, 32, 32) and len(found.test.y) == 20 and found.classes == 10
    assert found.counts().tolist() == [4] * 10 and -1 <= found.train.x.min() < found.train.x.max() <= 1


def test_fashion_mnist_is_loaded_in_a_style(tmp_path):
    write_idx(tmp_path, 28, True)
    for domain in ("plain", "sketch"):
        found = load_all("fashion", tmp_path, domain=domain)
        assert found.domain == domain and found.train.x.shape[1:] == (3, 32, 32)


def test_usps_is_loaded_from_its_libsvm_text(tmp_path):
    dice = np.random.default_rng(0)
    for name, n in (("usps.bz2", 30), ("usps.t.bz2", 10)):
        rows = []
        for i in range(n):
            pixels = " ".join(f"{j + 1}:{v:.6g}" for j, v in enumerate(dice.uniform(-1, 1, 256)))
            rows.append(f"{i % 10 + 1} {pixels} ")
        (tmp_path / name).write_bytes(bz2.compress("\n".join(rows).encode()))
    found = load_all("usps", tmp_path)
    assert len(found.train.y) == 30 and found.counts().tolist() == [3] * 10


def test_svhn_is_loaded_from_its_matlab_files_with_label_10_as_digit_0(tmp_path):
    matlab = pytest.importorskip("scipy.io")
    dice = np.random.default_rng(0)
    for name, n in (("train_32x32.mat", 20), ("test_32x32.mat", 10)):
        x = dice.integers(0, 256, (32, 32, 3, n), dtype=np.uint8)
        matlab.savemat(tmp_path / name, {"X": x, "y": (np.arange(n) % 10 + 1).astype(np.uint8)[:, None]})
    assert load_all("svhn", tmp_path).counts().tolist() == [2] * 10


class Python2(pickle._Pickler):
    """A pickler that writes bytes as Python 2 wrote its strings, which is the form of the published CIFAR."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, text):
        short = len(text) < 256
        self.write(
            (b"U" + struct.pack("<B", len(text)) if short else b"T" + struct.pack("<i", len(text))) + text
        )

    dispatch[bytes] = save_string


def python2_pickle(path, value):
    out = io.BytesIO()
    Python2(out, protocol=2).dump(value)
    path.write_bytes(out.getvalue())


def batch(n, key, classes):
    data = np.random.default_rng(n).integers(0, 256, (n, 3072), dtype=np.uint8)
    return {b"data": data, key: [i % classes for i in range(n)]}


def test_cifar_10_and_100_are_loaded_from_their_pickles(tmp_path):
    ten, hundred = tmp_path / "ten" / "cifar-10-batches-py", tmp_path / "hundred" / "cifar-100-python"
    ten.mkdir(parents=True), hundred.mkdir(parents=True)
    for i in range(1, 6):
        python2_pickle(ten / f"data_batch_{i}", batch(20, b"labels", 10))
    python2_pickle(ten / "test_batch", batch(10, b"labels", 10))
    python2_pickle(ten / "batches.meta", {b"label_names": [b"c%d" % i for i in range(10)]})
    for name, n in (("train", 200), ("test", 100)):
        python2_pickle(hundred / name, batch(n, b"fine_labels", 100))
    python2_pickle(hundred / "meta", {b"fine_label_names": [b"f%d" % i for i in range(100)]})
    assert load_all("cifar10", ten.parent).counts().tolist() == [10] * 10
    assert load_all("cifar100", hundred.parent).counts().tolist() == [2] * 100


class Harmful:
    def __reduce__(self):
        return (print, ("this ran",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path, capsys):
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}").write_bytes(pickle.dumps(Harmful()))
    (tmp_path / "batches.meta").write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(DataError, match=r"batches\.meta"):
        load_all("cifar10", tmp_path)
    assert "this ran" not in capsys.readouterr().out


def picture(path, shade):
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.fromarray(np.full((20, 24, 3), shade % 256, np.uint8)).save(path)


@pytest.mark.parametrize(("source", "domains", "test"), [
    ("office_caltech", ("amazon", "dslr"), 4), ("pacs", ("photo", "sketch"), 6),
])  # fmt: skip
def test_pictures_are_loaded_from_folders_by_domain_and_class(tmp_path, source, domains, test):
    for domain in domains:
        for label in ("bike", "mug"):
            for i in range(10):
                picture(tmp_path / domain / label / f"{i:03}.jpg", 20 * i)
    for domain in domains:
        found = load_all(source, tmp_path, domain=domain, classes=("bike", "mug"))
        assert found.classes == 2 and (len(found.train.y), len(found.test.y)) == (20 - test, test)


@pytest.mark.parametrize("half", ["test", "val"])
@pytest.mark.parametrize("domain", ["", "synth"])
def test_the_folders_train_and_test_or_val_become_training_and_test(tmp_path, half, domain):
    for split, n in (("train", 6), (half, 3)):
        for label in ("0", "1"):
            for i in range(n):
                picture(tmp_path / domain / split / label / f"{i}.png", 20 * i)
    found = load_all("folder", tmp_path, domain=domain)
    assert found.classes == 2 and (len(found.train.y), len(found.test.y)) == (12, 6)
    assert found.domain == (domain or "folder")


def test_train_and_test_folders_with_different_classes_are_refused(tmp_path):
    for place in ("train/0", "train/1", "test/0"):
        picture(tmp_path / place / "1.png", 9)
    with pytest.raises(
        DataError, match=r"train and .*test must have the same folders, but only one of them has '1'"
    ):
        load_all("folder", tmp_path)


def test_classes_can_have_the_names_train_and_test(tmp_path):
    for label in ("bus", "test", "train"):
        for i in range(10):
            picture(tmp_path / label / f"{i}.png", 20 * i)
    found = load_all("folder", tmp_path)
    assert found.classes == 3 and (len(found.train.y), len(found.test.y)) == (24, 6)


DOMAINNET = [
    (0, "aircraft_carrier"), (7, "bird"), (9, "feather"), (2, "headphones"), (3, "ice_cream"), (4, "teapot"),
    (5, "tiger"), (6, "whale"), (8, "windmill"), (10, "wine_glass"), (11, "zebra"),
]  # fmt: skip


def test_domainnet_is_loaded_from_its_lists_with_ten_classes_by_default(tmp_path):
    for split, n in (("train", 6), ("test", 3)):
        lines = []
        for label, name in DOMAINNET:
            for i in range(n):
                path = f"clipart/{name}/{split}_{i}.jpg"
                picture(tmp_path / path, label * 20)
                lines.append(f"{path} {label}")
        (tmp_path / f"clipart_{split}.txt").write_text("\n".join(lines))
    found = load_all("domainnet", tmp_path, domain="clipart")
    assert found.classes == 10 and found.counts().tolist() == [6] * 10


def test_tiny_imagenet_is_loaded_with_its_validation_part_as_test(tmp_path):
    for name in ("n01", "n02"):
        for i in range(5):
            picture(tmp_path / "train" / name / "images" / f"{name}_{i}.JPEG", 30 * i)
    rows = []
    for i in range(4):
        picture(tmp_path / "val" / "images" / f"val_{i}.JPEG", 30 * i)
        rows.append(f"val_{i}.JPEG\tn0{i % 2 + 1}\t0\t0\t62\t62")
    (tmp_path / "val" / "val_annotations.txt").write_text("\n".join(rows))
    found = load_all("tiny_imagenet", tmp_path)
    assert found.classes == 2 and found.counts().tolist() == [5, 5] and found.test.y.tolist() == [0, 1, 0, 1]


def test_the_error_names_an_unreadable_picture_or_an_empty_folder(tmp_path):
    for label in ("a", "b"):
        for i in range(10):
            picture(tmp_path / label / f"{i}.png", 20 * i)
    (tmp_path / "a" / "3.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"3\.png"):
        load_all("folder", tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="empty"):
        load_all("folder", empty)


@pytest.mark.parametrize("source", [n for n in names() if find(n).needs_folder])
def test_the_error_for_missing_data_names_the_folder_and_the_setting_root(tmp_path, source):
    more = {"shape": (3,)} if source == "table" else {}
    with pytest.raises(DataError) as error:
        load_all(source, tmp_path / "nowhere", domain="clipart" if source == "domainnet" else "", **more)
    assert str(tmp_path / "nowhere") in str(error.value) and "root" in str(error.value)
    assert "\n" not in str(error.value)
