"""Folders of pictures: the choice of training and test, the order of classes, and messages for mistakes."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.images.image_files import image_files_in, named_pictures
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard
from protofleet.edge_client.data.sources.folders import OFFICE_CALTECH
from protofleet.protocol.settings.input_shape import InputShape
from tests.edge_client.data.files import colours, write_class_folders


def shard(source, root, **more):
    return load_shard(DataSettings(source=source, root=str(root), **{"validation": 0.0, "size": 8, **more}))


def test_the_last_two_of_each_ten_office_pictures_are_test_samples(tmp_path):
    counts = dict.fromkeys(OFFICE_CALTECH.default_classes, 7)
    write_class_folders(tmp_path / "dslr", counts)
    found = shard("office_caltech", tmp_path, domain="dslr")
    everything = [(c, i, 0) for c in range(10) for i in range(7)]
    assert sorted(colours(found.test)) == [colour for n, colour in enumerate(everything) if n % 10 in (8, 9)]
    assert sorted(colours(found.train) + colours(found.test)) == everything
    assert [c for c, _, _ in colours(found.test)] == found.test.y.tolist()


@pytest.mark.parametrize("sizes", [(5, 6), (3, 9), (10, 11)])
def test_thirty_percent_of_pacs_pictures_rounded_up_are_test_samples(tmp_path, sizes):
    write_class_folders(tmp_path / "photo", {"dog": sizes[0], "horse": sizes[1]})
    found = shard("pacs", tmp_path, domain="photo", classes=("dog", "horse"), seed=0)
    assert len(found.test.y) == math.ceil(0.3 * sum(sizes))
    again = shard("pacs", tmp_path, domain="photo", classes=("dog", "horse"), seed=9)
    # A seed chooses shares, but it does not change the split into training and test.
    assert sorted(colours(again.test)) == sorted(colours(found.test))


def test_labels_follow_the_order_of_the_setting_classes(tmp_path):
    write_class_folders(tmp_path, {"ant": 5, "bee": 6, "cat": 7})
    by_name, chosen = shard("folder", tmp_path), shard("folder", tmp_path, classes=("cat", "ant"))
    assert by_name.classes == 3 and chosen.classes == 2
    assert all(c == y for (c, _, _), y in zip(colours(by_name.train), by_name.train.y.tolist(), strict=True))
    assert all(
        c == (2, 0)[y] for (c, _, _), y in zip(colours(chosen.train), chosen.train.y.tolist(), strict=True)
    )
    assert sorted(colours(chosen.test)) == sorted(each for each in colours(by_name.test) if each[0] != 1)


def test_a_subfolder_can_be_loaded_as_a_domain(tmp_path):
    write_class_folders(tmp_path / "kitchen", {"cup": 10, "pan": 10})
    found = shard("folder", tmp_path, domain="kitchen")
    assert found.domain == "kitchen" and (len(found.train.y), len(found.test.y)) == (16, 4)


def test_exactly_the_files_with_documented_picture_suffixes_are_found(tmp_path):
    kinds = (Path(__file__).parents[4] / "docs" / "your-data.md").read_text()
    kinds = re.findall(r"`(\.\w+)`", kinds.partition("**Which files are pictures.**")[2].partition("\n\n")[0])
    for kind in ("cup", "pan"):
        (tmp_path / kind).mkdir()
        for suffix in kinds:
            Image.new("RGB", (8, 8), (7, 7, 7)).save(tmp_path / kind / f"a{suffix.upper()}")
        (tmp_path / kind / "notes.txt").write_text("no picture")
    found = shard("folder", tmp_path)
    assert len(kinds) == 10 and len(found.train.y) + len(found.test.y) == 20
    assert len(image_files_in(tmp_path / "cup")) == 10


def test_the_error_for_folders_without_pictures_lists_their_file_types(tmp_path):
    (tmp_path / "cup").mkdir()
    for name in ("a.heic", "b.HEIC", "notes", ".hidden"):
        (tmp_path / "cup" / name).write_text("no picture")
    with pytest.raises(
        DataError, match=r"\(cup\), only other files \(2 \.heic, 1 notes\); pictures are \.bmp, \.gif,"
    ):
        shard("folder", tmp_path)


def test_an_empty_class_folder_gives_a_class_without_samples(tmp_path):
    write_class_folders(tmp_path, {"cup": 10, "pan": 0, "pot": 10})
    assert shard("folder", tmp_path).counts().tolist() == [8, 0, 8]


def test_the_error_for_a_class_without_a_folder_lists_the_classes_that_exist(tmp_path):
    write_class_folders(tmp_path, {"cup": 4, "pan": 4})
    with pytest.raises(DataError, match=r"no class 'pot'.*has cup, pan"):
        shard("folder", tmp_path, classes=("cup", "pot"))


def test_the_error_for_empty_class_folders_names_the_folders(tmp_path):
    write_class_folders(tmp_path, {"cup": 0, "pan": 0})
    with pytest.raises(DataError, match=rf"no pictures in the folders of {tmp_path} \(cup, pan\)"):
        shard("folder", tmp_path)


def test_other_colour_modes_are_read_and_hidden_files_are_skipped(tmp_path):
    write_class_folders(tmp_path, {"cup": 8, "pan": 8})
    Image.new("RGBA", (9, 9), (0, 200, 0, 0)).save(tmp_path / "cup" / "clear.png")
    Image.new("P", (9, 9)).save(tmp_path / "cup" / "palette.png")
    Image.new("L", (9, 9), 77).save(tmp_path / "pan" / "GREY.JPG")
    (tmp_path / "cup" / "Thumbs.db").write_bytes(b"not ours")
    (tmp_path / "cup" / "._0001.png").write_bytes(b"not ours")
    (tmp_path / ".cache").mkdir()
    found = shard("folder", tmp_path)
    assert len(found.train.y) + len(found.test.y) == 19 and found.classes == 2


def test_16_bit_grey_equals_8_bit_grey_and_32_bit_grey_is_refused(tmp_path):
    """Pillow makes all values above 255 white, so half of a camera's greys were lost without a message."""
    shades = np.random.default_rng(0).integers(0, 256, (9, 9), np.uint8)
    Image.fromarray(shades).save(tmp_path / "8.png")
    Image.fromarray(shades.astype(np.uint16) * 257).save(tmp_path / "16.png")
    Image.fromarray(shades.astype(np.int32)).save(tmp_path / "32.tif")
    shape = InputShape((3, 9, 9))
    eight, sixteen = (named_pictures([tmp_path / f"{bits}.png"], shape) for bits in (8, 16))
    assert np.array_equal(eight, sixteen) and len(np.unique(eight)) > 20
    with pytest.raises(DataError, match=r"32\.tif cannot be read \(it has 32 bits for each pixel"):
        named_pictures([tmp_path / "32.tif"], shape)


@pytest.mark.parametrize("cut", [0, 20, 60])
def test_the_error_names_a_damaged_picture(tmp_path, cut):
    write_class_folders(tmp_path, {"cup": 4, "pan": 4})
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "cup" / "bad.png")
    whole = (tmp_path / "cup" / "bad.png").read_bytes()
    (tmp_path / "cup" / "bad.png").write_bytes(whole[:cut] + whole[cut + 9 : -40] if cut else b"")
    with pytest.raises(DataError, match=r"bad\.png cannot be read .*; replace it"):
        shard("folder", tmp_path)


def test_the_error_names_a_listed_picture_that_is_missing(tmp_path):
    write_class_folders(tmp_path / "real", {"bird": 3, "tiger": 3})
    lines = [
        f"real/{name}/{i:04}.png {label}" for label, name in ((3, "bird"), (9, "tiger")) for i in range(4)
    ]
    for split in ("train", "test"):
        (tmp_path / f"real_{split}.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"no file .*real.(bird|tiger).0003\.png"):
        shard("domainnet", tmp_path, domain="real", classes=("bird", "tiger"))


@pytest.mark.parametrize("text", ["", "real/bird/1.png", "real/bird/1.png x", "real/bird/1.png -1"])
def test_the_error_names_a_damaged_list_file(tmp_path, text):
    (tmp_path / "real_train.txt").write_text(text)
    with pytest.raises(DataError, match=r"real_train\.txt cannot be read"):
        shard("domainnet", tmp_path, domain="real")


def test_only_pictures_that_are_used_are_opened(tmp_path):
    write_class_folders(tmp_path, {"cup": 40, "pan": 40})
    few = {"samples": 6, "test_samples": 2}
    found = shard("folder", tmp_path, **few)
    used = {*colours(found.train), *colours(found.test)}
    for i in range(40):
        if (0, i, 0) not in used:
            (tmp_path / "cup" / f"{i:04}.png").write_bytes(b"broken, but nobody asks for it")
    again = shard("folder", tmp_path, **few)
    assert {*colours(again.train), *colours(again.test)} == used and len(used) == 8
