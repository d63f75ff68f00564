"""Readers put each pixel and each label in its right place, and agree with torchvision on the files that it reads."""

import bz2
import pickle
import struct
import sys

import numpy as np
import pytest

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard
from protofleet.edge_client.data.sources import fashion, mnist, svhn, usps
from protofleet.edge_client.data.sources.cifar import unpickled
from protofleet.edge_client.data.sources.idx import read_idx
from protofleet.methods.nets.torchvision_import import import_torchvision
from protofleet.protocol.settings.input_shape import InputShape
from tests.edge_client.data.files import write_idx, write_mnist, write_svhn, write_usps


def all_of(collection, size):
    return collection.samples(np.arange(len(collection.labels)), InputShape((3, size, size))).transpose(
        0, 2, 3, 1
    )


def torchvision_datasets():
    try:
        import_torchvision()
    except ImportError as error:
        pytest.skip(str(error))
    from torchvision import datasets

    return datasets


def test_mnist_equals_what_torchvision_reads(tmp_path):
    datasets = torchvision_datasets()
    write_mnist(tmp_path / "MNIST" / "raw", 40, 20)
    found = mnist.read(tmp_path, "mnist")
    for collection, train in ((found.train, True), (found.test, False)):
        theirs = datasets.MNIST(str(tmp_path), train=train)
        assert (collection.labels == theirs.targets.numpy()).all()
        assert (all_of(collection, 28) == theirs.data.numpy()[..., None]).all()


def test_usps_equals_what_torchvision_reads(tmp_path):
    datasets = torchvision_datasets()
    for name, n in (("usps.bz2", 30), ("usps.t.bz2", 10)):
        write_usps(tmp_path / name, np.random.default_rng(n).uniform(-1, 1, (n, 256)), np.arange(n) % 10)
    found = usps.read(tmp_path, "usps")
    for collection, train in ((found.train, True), (found.test, False)):
        theirs = datasets.USPS(str(tmp_path), train=train)
        assert collection.labels.tolist() == theirs.targets
        assert (all_of(collection, 16) == theirs.data[..., None]).all()


def test_usps_pixels_missing_from_the_file_are_read_as_zero(tmp_path):
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(b"3 1:-1 256:1\n"))
    image = all_of(usps.read(tmp_path, "usps").train, 16)[0, ..., 0].ravel()
    assert (image[0], image[1], image[254], image[255]) == (0, 127, 127, 255)


def test_svhn_images_are_on_the_last_axis_and_label_10_is_digit_0(tmp_path):
    pytest.importorskip("scipy")
    images, labels = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8), np.arange(12) % 10
    for name in ("train_32x32.mat", "test_32x32.mat"):
        write_svhn(tmp_path / name, images, labels)
    found = svhn.read(tmp_path, "svhn").train
    assert (all_of(found, 32) == images).all() and (found.labels == labels).all()


def test_the_error_for_svhn_without_scipy_names_scipy(tmp_path, monkeypatch):
    (tmp_path / "train_32x32.mat").write_bytes(b"MATLAB 5.0")
    monkeypatch.setitem(sys.modules, "scipy.io.matlab", None)
    with pytest.raises(DataError, match=r"train_32x32\.mat.*scipy.*pip install scipy"):
        load_shard(DataSettings(source="svhn", root=str(tmp_path)))


@pytest.mark.parametrize("data", [b"", b"MATLAB 5.0 MAT-file", bytes(200)], ids=["empty", "cut", "zeros"])
def test_the_error_names_a_damaged_matlab_file(tmp_path, data):
    pytest.importorskip("scipy")
    (tmp_path / "train_32x32.mat").write_bytes(data)
    with pytest.raises(DataError, match=r"train_32x32\.mat cannot be read"):
        load_shard(DataSettings(source="svhn", root=str(tmp_path)))


def test_a_cifar_row_contains_its_three_colour_planes_in_turn(tmp_path):
    row = np.arange(3072) % 251
    for i in range(1, 6):
        write_batch(tmp_path / f"data_batch_{i}", row, [i])
    write_batch(tmp_path / "test_batch", row, [0])
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"c{i}" for i in range(10)]}, 2))
    found = load_shard(DataSettings(source="cifar10", root=str(tmp_path), validation=0.0))
    assert sorted(found.train.y.tolist()) == [1, 2, 3, 4, 5]
    pixels = ((found.train.x[0] + 1) * 127.5).round().int().numpy()
    assert (pixels == row.reshape(3, 32, 32)).all()


def write_batch(path, row, labels):
    path.write_bytes(
        pickle.dumps({"data": np.tile(row, (len(labels), 1)).astype(np.uint8), "labels": labels}, 2)
    )


def pickled(module, name, argument):
    return (
        b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"U" + bytes([len(argument)]) + argument + b"\x85R."
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("__builtin__", "open"),
    ],
)
def test_a_pickle_that_loads_a_dangerous_function_is_refused(tmp_path, module, name):
    (tmp_path / "batch").write_bytes(pickled(module, name, b"touch " + str(tmp_path / "acted").encode()))
    with pytest.raises(pickle.UnpicklingError, match=f"it loads {module}.{name}"):
        unpickled(tmp_path / "batch")
    assert not (tmp_path / "acted").exists()


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x02", b"garbage", pickle.dumps([1, 2]), pickle.dumps({"data": 3, "labels": [1]})]
)
def test_the_error_names_a_damaged_pickle(tmp_path, data):
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a", "b"]}))
    (tmp_path / "data_batch_1").write_bytes(data)
    with pytest.raises(DataError, match="data_batch_1 cannot be read"):
        load_shard(DataSettings(source="cifar10", root=str(tmp_path)))


IDX = struct.pack(">HBBIII", 0, 8, 3, 2, 2, 2) + bytes(8)


@pytest.mark.parametrize(
    "data", [b"", IDX[:6], IDX[:-1], IDX + b"0", b"\0\0\x0d\x03" + IDX[4:], b"\0\0\x08\x01" + IDX[4:]]
)
def test_the_error_names_a_damaged_idx_file(tmp_path, data):
    (tmp_path / "images").write_bytes(data)
    with pytest.raises(DataError, match="images cannot be read"):
        read_idx(tmp_path / "images", 3)
    (tmp_path / "images").write_bytes(IDX)
    assert read_idx(tmp_path / "images", 3).shape == (2, 2, 2)


def test_different_numbers_of_images_and_labels_are_refused(tmp_path):
    write_mnist(tmp_path, 20, 10)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(19))
    with pytest.raises(DataError, match="has 20 images, but .* has 19 labels"):
        load_shard(DataSettings(source="mnist", root=str(tmp_path)))


def test_a_label_outside_the_classes_is_refused(tmp_path):
    write_mnist(tmp_path, 20, 10)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.arange(10) + 1)
    with pytest.raises(DataError, match="labels 1 to 10 for its 10 classes"):
        load_shard(DataSettings(source="mnist", root=str(tmp_path)))


def garments(tmp_path, n=80):
    write_mnist(tmp_path, n, 40)
    images = np.zeros((n, 28, 28), np.uint8)
    images[:, 8:20, 8:20] = 100
    images[:, 0, 0] = np.arange(n)  # the number of the image
    write_idx(tmp_path / "train-images-idx3-ubyte", images)
    return {domain: fashion.read(tmp_path, domain).train for domain in fashion.STYLES}


def test_each_garment_is_in_only_one_style(tmp_path):
    numbers = [set(style.images[:, 0, 0, 0].tolist()) for style in garments(tmp_path).values()]
    assert sum(len(found) for found in numbers) == 80 == len(set().union(*numbers))


@pytest.mark.parametrize("style", fashion.STYLES)
def test_a_garment_has_the_same_pixels_in_any_selection(tmp_path, style):
    found = garments(tmp_path)[style]
    together = found.samples(np.arange(20), InputShape((3, 32, 32)))
    assert (found.samples(np.array([7, 3]), InputShape((3, 32, 32))) == together[[7, 3]]).all()


def test_garment_styles_differ_in_edges_background_and_colours(tmp_path):
    x = {domain: all_of(found, 28).astype(int) for domain, found in garments(tmp_path).items()}
    inside, edge, outside = np.s_[:, 12:16, 12:16], np.s_[:, 8, 10:18], np.s_[:, 3:5, 3:24]
    assert (x["plain"][inside] == 100).all() and (x["plain"][outside] == 0).all()
    assert x["sketch"][edge].max() < x["sketch"][inside].min() and x["sketch"][outside].min() >= 200
    assert x["photo"][outside].std() > 10 and np.ptp(x["photo"][inside], axis=(1, 2)).max() == 0
    assert all(len(np.unique(image.reshape(-1, 3), axis=0)) == 2 for image in x["print"])


def test_garments_missing_from_root_are_loaded_from_the_debian_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion, "DEBIAN", tmp_path / "debian")
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte.* in {tmp_path}/root.*{tmp_path}/debian"):
        load_shard(DataSettings(source="fashion", root=str(tmp_path / "root"), domain="plain"))
    write_mnist(tmp_path / "debian", 80, 40)
    assert (
        len(load_shard(DataSettings(source="fashion", root=str(tmp_path / "root"), domain="plain")).test.y)
        == 10
    )
