"""Each source returns the names of its classes without reading a picture, and they equal the names in its data."""

import logging

import pytest

from protofleet.edge_client.data.catalog import SOURCES, names
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import class_names, load_shard
from protofleet.edge_client.data.sources.digits import CLASSES as DIGITS
from tests.edge_client.data.files import write_class_folders, write_mnist

PETS = {"cat": 10, "dog": 10, "owl": 10}


def settings(root, **more):
    return DataSettings(source="folder", root=str(root), size=8, **more)


def test_each_source_names_its_classes_without_loading_pictures():
    for name in names():
        source = SOURCES[name]
        reads = source.class_names.__module__ != "protofleet.edge_client.data.sources.source"
        assert source.default_classes or reads or source.class_names(None, name) == DIGITS, name


@pytest.mark.parametrize("source", ["digits", "mnist", "usps", "svhn"])
def test_the_classes_of_each_digit_source_are_named_0_to_9(source, tmp_path):
    domain = "street" if source == "digits" else source
    assert class_names(DataSettings(source=source, root=str(tmp_path), domain=domain)) == DIGITS


def test_loaded_data_has_the_class_names_that_were_found_without_loading(tmp_path):
    write_mnist(tmp_path / "mnist", 40, 20)
    write_class_folders(tmp_path / "pets", PETS)
    for made in (
        DataSettings(source="mnist", root=str(tmp_path / "mnist"), size=8),
        DataSettings(source="mnist", root=str(tmp_path / "mnist"), size=8, classes=("7", "1")),
        settings(tmp_path / "pets"),
        settings(tmp_path / "pets", classes=("owl", "cat")),
    ):
        shard = load_shard(made)
        assert shard.names == class_names(made) and len(shard.names) == shard.classes


def test_the_folders_train_and_test_are_not_classes(tmp_path):
    for half in ("train", "test"):
        write_class_folders(tmp_path / half, PETS)
    assert class_names(settings(tmp_path)) == load_shard(settings(tmp_path)).names == ("cat", "dog", "owl")


@pytest.mark.parametrize("name", ["x" * 65, "owl\x1b[2J"])
def test_data_with_an_invalid_class_name_is_used_without_class_names(tmp_path, caplog, name):
    write_class_folders(tmp_path, {"cat": 10, "dog": 10, name: 10})
    with caplog.at_level(logging.WARNING):
        shard = load_shard(settings(tmp_path))
    assert shard.classes == 3 and shard.names == ()
    assert "is no name of a class" in caplog.text and "\x1b" not in caplog.messages[0]
