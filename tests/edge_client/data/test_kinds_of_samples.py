"""Vectors, series and images of any shape come from tables, arrays and packages, scaled by stated constants."""

import numpy as np
import pytest
import torch
from PIL import Image

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.catalog import find
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.inbox.listing import InboxEntry
from protofleet.edge_client.data.inbox.shard import joined, samples_of
from protofleet.edge_client.data.packages import package_file
from protofleet.edge_client.data.scaling import Scale
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard
from protofleet.edge_client.data.sources.tables import FILES
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.storage.disk import Disk


@pytest.mark.parametrize(
    ("source", "width", "rows"), [("breast_cancer", 30, 569), ("iris", 4, 150), ("wine", 13, 178)]
)
def test_scikit_learn_tables_are_loaded_as_vectors_on_one_scale(source, width, rows):
    settings = DataSettings(source, own_test=None, validation=0.0)
    shard = load_shard(settings)
    assert settings.input_shape == InputShape((width,)) and shard.train.x.dtype == torch.float32
    assert (len(shard.train.y), len(shard.test.y)) == (rows - rows // 5, rows // 5)
    assert shard.names == find(source).class_names(None, source) and shard.classes == len(shard.names)
    every = torch.cat([shard.train.x, shard.test.x])
    assert every.mean(0).abs().max() < 0.1 and (every.std(0) - 1).abs().max() < 0.1


def test_a_loaded_table_has_the_numbers_of_its_file():
    settings = DataSettings("iris", validation=0.0)
    rows = [
        line.split(",")
        for line in package_file("sklearn", f"datasets/data/{FILES['iris']}.csv").read_text().split()
    ]
    known = {tuple(np.float32(cell) for cell in row[:-1]): int(row[-1]) for row in rows[1:]}
    shard = load_shard(settings)
    offset, by = (np.array(numbers, np.float32) for numbers in (settings.scaling.offset, settings.scaling.by))
    for x, y in zip(shard.test.x.numpy(), shard.test.y.tolist(), strict=True):
        near = min(known, key=lambda row: abs(np.array(row) - (x * by + offset)).sum())
        assert abs(np.array(near) - (x * by + offset)).max() < 1e-5 and known[near] == y


def test_the_last_column_of_a_users_table_gives_the_classes(tmp_path):
    lines = ["length,width,kind"] + [f"{i},{i * 2.5},{'ab'[i % 2]}" for i in range(20)]
    (tmp_path / "fish.csv").write_text("\n".join(lines))
    settings = DataSettings("table", str(tmp_path), "fish", shape=(2,), scale=Scale((10.0,), (5.0, 25.0)))
    shard = load_shard(settings)
    assert shard.names == ("a", "b") and len(shard.test.y) == 4 and shard.train.x.shape == (14, 2)
    rows = shard.train.x * torch.tensor([5.0, 25.0]) + 10
    assert torch.allclose(rows[:, 1], rows[:, 0] * 2.5, atol=1e-4)
    assert all(int(round(float(a))) % 2 == y for a, y in zip(rows[:, 0], shard.train.y.tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1,2,a\n3,b", "line 2 is '3, b', it must be 2 numbers and a class, with commas between"),
        ("p,q,kind\n\n1,2,a\nx,2,b", "line 4 is 'x, 2, b', it must be 2 numbers and a class"),
        ("1,a\nb", "line 2 is 'b', it must be 1 number and a class"),
        (
            "p;q;kind\n1;2;a",
            "line 2 is '1;2;a', with semicolons between its values; save the table with commas",
        ),
        ("p\tq\tk\n1\t2\ta", "line 2 is .*, with tabs between its values; save the table with commas"),
        ("1\n2", "line 1 is '1', it must be numbers and a class, with commas between"),
        ("1,nan,a\n2,3,b", "has numbers that are not finite; leave out such samples"),
        ("", "has no rows; rows are looked for in <root>/<domain>.csv"),
    ],
)
def test_the_error_for_an_unusable_table_names_the_file_and_the_fault(tmp_path, text, told):
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(DataError, match=told) as said:
        load_shard(DataSettings("table", str(tmp_path), shape=(2,)))
    assert str(tmp_path / "data.csv") in str(said.value) and "\n" not in str(said.value)


def test_arrays_of_series_stay_unchanged_and_arrays_of_images_become_pixels(tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 6, 128)).astype(np.float32)
    np.savez(tmp_path / "watch.npz", x=x, y=np.array(["walk", "run", "sit"] * 10))
    series = load_shard(DataSettings("arrays", str(tmp_path), "watch", shape=(6, 128), validation=0.0))
    assert series.names == ("run", "sit", "walk") and series.train.x.shape == (24, 6, 128)
    assert {row.numpy().tobytes() for row in series.train.x} <= {row.tobytes() for row in x}

    pixels = np.random.default_rng(1).integers(0, 256, (20, 12, 16, 5), np.uint8)
    held = {"x_test": pixels[:4], "y_test": np.arange(4) % 2}
    np.savez(
        tmp_path / "field.npz", x=pixels, y=np.arange(20) % 2, classes=np.array(["soil", "crop"]), **held
    )
    images = load_shard(DataSettings("arrays", str(tmp_path), "field", shape=(5, 12, 16), validation=0.0))
    assert images.names == ("soil", "crop") and images.train.x.shape == (20, 5, 12, 16)
    assert torch.allclose(
        images.test.x, torch.from_numpy(pixels[:4].transpose(0, 3, 1, 2) / 127.5 - 1).float(), atol=1e-6
    )


def test_bytes_are_numbers_in_a_run_of_series_and_grey_pixels_in_a_run_of_images(tmp_path):
    """Sensors of 8 bits give such bytes. Earlier they were taken for pictures, and a run could not use them."""
    x = np.random.default_rng(2).integers(0, 256, (40, 3, 28), np.uint8)
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(40) % 2)
    scale = Scale((100.0, 120.0, 140.0), (50.0,))
    series = load_shard(DataSettings("arrays", str(tmp_path), shape=(3, 28), validation=0.0, scale=scale))
    raw = series.train.x * 50 + torch.tensor([100.0, 120.0, 140.0])[:, None]
    assert {row.round().byte().numpy().tobytes() for row in raw} <= {row.tobytes() for row in x}
    assert (series.pixels, series.scale) == (False, scale)
    grey = load_shard(DataSettings("arrays", str(tmp_path), shape=(1, 3, 28), validation=0.0))
    assert grey.pixels and float(grey.train.x.abs().max()) <= 1
    with pytest.raises(
        DataError, match=r"has series \[3, 28\], .* ask for series \[3, 29\]; set data.shape = "
    ):
        load_shard(DataSettings("arrays", str(tmp_path), shape=(3, 29)))


@pytest.mark.parametrize(
    ("x", "shape", "told"),
    [
        ((3, 8, 9), (3, 8, 9), r"must be the last axis: store x.transpose\(0, 2, 3, 1\), which is \[N, height"),
        ((8, 9, 3), (8, 9), r"uint8 \[8, 9, 3\], and the settings ask for series .* set data.shape = \[3, height"),
        ((8, 9, 3), (216,), r"uint8 \[8, 9, 3\], and the settings ask for vectors .* set data.shape = \[3, height"),
    ],
)  # fmt: skip
def test_the_error_for_pixels_with_another_shape_states_the_right_shape(tmp_path, x, shape, told):
    np.savez(tmp_path / "data.npz", x=np.zeros((20, *x), np.uint8), y=np.arange(20) % 2)
    with pytest.raises(DataError, match=told):
        load_shard(DataSettings("arrays", str(tmp_path), shape=shape))


def test_pixels_with_a_scale_or_mixed_with_floats_are_refused(tmp_path):
    """Earlier there was no message: the scale had no effect, and the test had other numbers than the training."""
    pixels = np.random.default_rng(1).integers(0, 256, (20, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.arange(20) % 2)
    others = np.moveaxis(pixels, -1, 1).astype(np.float32)
    np.savez(tmp_path / "b.npz", x=pixels, y=np.arange(20) % 2, x_test=others, y_test=np.arange(20) % 2)
    settings = DataSettings("arrays", str(tmp_path), "a", shape=(3, 8, 8), scale=Scale((0.0,), (255.0,)))
    with pytest.raises(DataError, match=r"data.scale is set, and a of arrays has pixels \(uint8\)"):
        load_shard(settings)
    with pytest.raises(DataError, match="b of arrays has pixels .* only for training or only for the test"):
        load_shard(DataSettings("arrays", str(tmp_path), "b", shape=(3, 8, 8)))


def test_inbox_samples_of_another_type_than_the_data_are_left_out_and_logged(tmp_path, caplog):
    pixels = np.random.default_rng(1).integers(0, 256, (20, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.arange(20) % 2)
    settings = DataSettings("arrays", str(tmp_path), "a", shape=(3, 8, 8), own_test=0.2)
    base, samples = load_shard(settings), samples_of(settings, tmp_path, Disk(False))
    listing = [InboxEntry(bytes([200, n] * 16), n) for n in range(2)]
    samples.keep(listing[0].sha256, np.moveaxis(pixels[0], -1, 0))
    samples.keep(listing[1].sha256, np.ones((3, 8, 8), np.float32))
    grown = joined(base, tuple(listing), samples, settings)
    assert len(grown.train.y) == len(base.train.y) + 1 and grown.scale == base.scale
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        f"the inbox's sample {listing[1].sha256.hex()[:12]} is left out: its numbers are not uint8"
    )


def test_pictures_are_loaded_at_any_height_and_width(tmp_path):
    for i in range(10):
        folder = tmp_path / "ab"[i % 2]
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (60, 40), (25 * i, 0, 255)).save(folder / f"{i}.png")
    shard = load_shard(DataSettings("folder", str(tmp_path), shape=(3, 24, 40)))
    assert shard.train.x.shape[1:] == (3, 24, 40) and bool((shard.train.x[:, 2] == 1).all())
    assert load_shard(DataSettings("folder", str(tmp_path), shape=(1, 24, 40))).train.x.shape[1:] == (
        1,
        24,
        40,
    )
    square = (
        load_shard(DataSettings("folder", str(tmp_path), size=24)),
        DataSettings("folder", shape=(3, 24, 24)),
    )
    assert torch.equal(
        square[0].train.x, load_shard(DataSettings("folder", str(tmp_path), shape=(3, 24, 24))).train.x
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            {"source": "folder", "shape": [4, 32, 32]},
            "folder has images of 3 channels, or 1 in grey.*arrays",
        ),
        (
            {"source": "digits", "shape": [6, 128]},
            r"digits has images \[C, H, W\].*ask for series \[6, 128\]",
        ),
        ({"source": "table", "shape": [6, 128]}, r"table has vectors \[F\]"),
        (
            {"source": "wine", "shape": [12]},
            r"wine has vectors \[13\], and the settings ask for vectors \[12\]",
        ),
        ({"source": "wine", "size": 64}, r"shape is \[13\] and size is 64; shape alone is enough"),
        ({"source": "arrays", "shape": [6, 128], "size": 64}, "shape alone is enough, leave size out"),
        ({"source": "digits", "scale": {"by": [2.0]}}, "digits has a scale of its own; leave scale out"),
        ({"source": "wine", "scale": {"by": [2.0]}}, "wine has a scale of its own; leave scale out"),
        (
            {"source": "arrays", "shape": [6, 9], "scale": {"by": [1.0, 2.0]}},
            "scale.by has 2 numbers.* 1 or 6",
        ),
        (
            {"source": "arrays", "shape": [6, 9], "scale": {"by": [0.0]}},
            r"data.scale.by\[0\] is 0.0, it must",
        ),
    ],
)
def test_settings_refuse_a_shape_or_scale_that_the_source_cannot_give(data, told):
    with pytest.raises(SettingsError, match=told):
        decode(DeviceSettings, {"name": "a", "data": data})


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        (
            {"x": np.zeros((4, 6, 9), np.float32), "y": np.arange(4)},
            r"has series.*set data.shape = \[6, 9\]",
        ),
        (
            {"x": np.zeros((4, 6, 8), np.float32), "y": np.arange(3)},
            r"x \(4, 6, 8\), y \(3,\); it must have x and y",
        ),
        ({"x": np.zeros((4, 6, 8), np.float32)}, "has no array y"),
        ({"x": np.full((4, 6, 8), np.nan), "y": np.arange(4)}, "x has numbers that are not finite"),
        ({"x": np.array([["a"] * 4] * 4), "y": np.arange(4)}, "x is <U1 .4, 4., it must be numbers"),
        ({"x": np.zeros((4, 6, 8)), "y": np.zeros(4)}, "y is float64 .4,., it must be names of classes"),
    ],
)
def test_the_error_for_unusable_arrays_states_the_fault(tmp_path, arrays, told):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(DataError, match=told):
        load_shard(DataSettings("arrays", str(tmp_path), shape=(6, 8), own_test=0.5, validation=0.0))


def test_pickled_arrays_are_refused_and_not_loaded(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.array([{}], object), y=np.array([0]))
    with pytest.raises(
        DataError, match="x has objects of Python, which are never loaded; save numbers"
    ) as said:
        load_shard(DataSettings("arrays", str(tmp_path), shape=(6, 8)))
    assert "allow_pickle" not in str(said.value), "the error does not advise to load it"


@pytest.mark.parametrize("what", ["text", "a single array", "half a file"])
def test_a_file_that_is_not_a_complete_npz_file_is_refused(tmp_path, what):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((4, 6, 8)), y=np.arange(4))
    if what == "a single array":
        with path.open("wb") as file:
            np.save(file, np.zeros((4, 6, 8)))
    else:
        path.write_bytes(b"hello" if what == "text" else path.read_bytes()[:700])
    with pytest.raises(
        DataError, match="data.npz cannot be read .it is not a complete .npz file; write it with numpy.savez"
    ) as said:
        load_shard(DataSettings("arrays", str(tmp_path), shape=(6, 8)))
    assert "pickle" not in str(said.value)


def test_the_error_for_missing_or_changed_series_names_the_fetch_command(tmp_path):
    with pytest.raises(
        DataError, match="there is no BasicMotions_TRAIN.arff in .*data --fetch basic-motions"
    ):
        load_shard(DataSettings("basic_motions", str(tmp_path)))
    (tmp_path / "BasicMotions_TRAIN.arff").write_text("'1,2\\n3,4',Running\n")
    with pytest.raises(DataError, match="has SHA-256 .*, not acdb2ac69db5...; protofleet data --fetch"):
        load_shard(DataSettings("basic_motions", str(tmp_path)))
