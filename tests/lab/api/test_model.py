"""`protofleet.load_model` loads the model of a run, of an export, and of a board that serves one."""

import numpy as np
import pytest
import torch
from PIL import Image

import protofleet
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard
from protofleet.lab.api.samples import samples_of
from protofleet.methods.served.scaling import Input, Scaling
from tests.lab.local.test_run import furnished
from tests.lab.local.test_run import protofleet as command

pytestmark = pytest.mark.slow
KINDS = ("circle", "line", "square")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with two runs: one of a global model, with an export of it, and one of devices' own models."""
    folder = furnished(tmp_path_factory.mktemp("models"))
    table = {"base": str(folder / "small.toml"), "rounds": 4}
    training = {"epochs": 8, "batch": 8, "lr": 0.05}
    protofleet.run(table | {"method": {"name": "fedavg", **training}}, runs=folder / "runs", progress="off")
    own = table | {"name": "own", "method": {"name": "fedproto", **training}}
    protofleet.run(own, runs=folder / "runs", progress="off")
    done = command("export", "runs/small", "--last", "--format", "safetensors", "--out", "given", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def stored(place):
    """Return the paths of some pictures, their pixels as [N, 3, 8, 8], and the class of each."""
    paths = [place / "data" / kind / f"{number}.png" for kind in KINDS for number in range(5)]
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths]).transpose(0, 3, 1, 2)
    return paths, pixels, [kind for kind in KINDS for _ in range(5)]


def test_paths_arrays_and_tensors_of_the_same_samples_give_the_same_predictions(place):
    model = protofleet.load_model(place / "runs" / "small", which="last")
    paths, pixels, shows = stored(place)
    assert model.classes == KINDS and model.card.round == 4 and model.card.chosen == "last"
    said = model.predict(paths)
    assert (
        said
        == model.predict(pixels)
        == model.predict(torch.from_numpy(pixels))
        == model.predict([*map(str, paths)])
    )
    assert sum(a == b for a, b in zip(said, shows, strict=True)) >= 12
    assert said == model.predict(list(pixels)) == model.predict([torch.from_numpy(one) for one in pixels])
    assert said == model.predict(pixels.tolist()) == model.predict(np.array([*map(str, paths)]))
    last = pixels.transpose(0, 2, 3, 1)  # the form that a file of arrays has
    assert said == model.predict(last) == model.predict(list(last)) and said[:1] == model.predict(last[0])
    assert model.predict([]) == [] and said == model.predict(one for one in pixels)
    assert model.predict(paths[0]) == model.predict(pixels[0]) == said[:1]
    assert model.scores(paths).shape == (15, 3) and model.scores(pixels[:0]).shape == (0, 3)
    assert torch.equal(model.module(torch.from_numpy(pixels).float()), model.scores(pixels))


def test_grey_pixels_are_accepted_with_and_without_a_channel_axis():
    grey, takes = np.random.default_rng(0).integers(0, 256, (6, 4, 5), np.uint8), Input((1, 4, 5))
    for given in (grey, grey[..., None], grey[:, None], list(grey)):
        assert np.array_equal(samples_of(given, takes).numpy()[:, 0], grey)
    assert samples_of(grey[0], takes).shape == (1, 1, 4, 5)
    with pytest.raises(protofleet.SettingsError, match=r"the samples have the shape \[6, 4, 5\]"):
        samples_of(grey.astype(np.float32), takes)


def test_the_model_has_the_accuracy_that_the_summary_of_the_run_contains(place):
    result = protofleet.Result(place / "runs" / "small")
    model, right, total = result.model("last"), 0, 0
    for part in range(3):
        settings = DataSettings(
            source="folder", root=str(place / "data"), size=8, split="iid", part=part, parts=3
        )
        test = load_shard(settings).test
        scaling = Scaling(model.card.input)
        pixels = (test.x * 255 + 255).div(2).round()  # back to the stored values
        assert torch.equal(scaling(pixels), test.x)
        confusion = model.confusion(pixels, test.y)
        right, total = right + int(confusion.trace()), total + int(confusion.sum())
        assert confusion.sum(1).tolist() == test.y.bincount(minlength=3).tolist()
    assert right / total == pytest.approx(result.summary["accuracy"]["pooled"])


def test_the_best_model_is_from_the_round_that_the_summary_names(place):
    result = protofleet.Result(place / "runs" / "small")
    best = protofleet.load_model(result.folder)
    assert best.card.chosen == "best"
    assert best.card.round == result.summary["accuracy"]["best_by_validation"]["point"]


def test_an_exported_model_gives_the_same_scores_as_the_model_of_the_run(place):
    given, run = (
        protofleet.load_model(place / "given"),
        protofleet.load_model(place / "runs" / "small", which="last"),
    )
    _, pixels, _ = stored(place)
    assert torch.equal(given.scores(pixels), run.scores(pixels)) and given.card.tensors == run.card.tensors


def test_a_model_is_loaded_from_a_folder_with_the_link_current(place, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "current").symlink_to(place / "given")
    for folder in (tmp_path, tmp_path / "models", tmp_path / "models" / "current"):
        assert protofleet.load_model(folder).card.round == 4


def test_the_model_of_one_device_is_loaded_by_the_name_of_the_device(place):
    model = protofleet.Result(place / "runs" / "own").model(device="device-2", which="last")
    assert model.card.device == "device-2" and model.card.method == "fedproto"
    assert "of device-2" in repr(model)


def predict(place, samples):
    return protofleet.load_model(place / "given").predict(samples)


def with_number(number):
    samples = np.zeros((2, 3, 8, 8))
    samples[1, 2, 7, 7] = number
    return samples


MISTAKES = {
    "no such folder": (lambda p: protofleet.load_model(p / "none"), "there is no folder .*none"),
    "no device": (lambda p: protofleet.load_model(p / "runs" / "own"), "device-1"),
    "another device": (lambda p: protofleet.load_model(p / "runs" / "own", "device-9"), "device-9"),
    "a device of an export": (lambda p: protofleet.load_model(p / "given", "device-1"), "the model of all devices"),
    "which": (lambda p: protofleet.load_model(p / "given", which="newest"), "`which` is 'newest', it must be"),
    "shape": (
        lambda p: protofleet.load_model(p / "given").predict(np.zeros((2, 3, 9, 9))),
        r"the samples have the shape \[2, 3, 9, 9\]; the model takes \[N, 3, 8, 8\]",
    ),
    "nothing": (lambda p: predict(p, None), r"None \(NoneType\) is no sample; give paths of pictures, or an array"),
    "a number": (lambda p: predict(p, 5), r"5 \(int\) is no sample"),
    "words": (lambda p: predict(p, np.array([["a"]])), r"array\(\[\['a'\]\].*is no sample"),
    "objects": (lambda p: predict(p, np.array([[None]])), r"array\(\[\[None\]\].*is no sample"),
    "bytes": (lambda p: predict(p, b"abc"), "b'abc' .bytes. is no sample"),
    "a table": (lambda p: predict(p, {"a": 1}), "is no sample"),
    "a path and an array": (lambda p: predict(p, ["a.png", np.zeros((3, 8, 8))]), "'a.png' .str. is no sample"),
    "lists of other shapes": (lambda p: predict(p, [[1, 2]]), r"the samples have the shape \[1, 2\]"),
    "ragged lists": (lambda p: predict(p, [[1, 2], [3]]), r"sample 1 has the shape \[1\], but sample 0 has \[2\]"),
    "deeper ragged lists": (lambda p: predict(p, [[[1, 2], [3]]]), "is no sample"),
    "complex": (lambda p: predict(p, torch.zeros(1, 3, 8, 8) * 1j), "is no sample"),
    "no memory": (lambda p: predict(p, torch.zeros(1, 3, 8, 8, device="meta")), "is no sample"),
    "NaN": (lambda p: predict(p, with_number(np.nan)), "sample 1 has numbers that are not finite"),
    "infinite": (lambda p: predict(p, with_number(-np.inf)), "sample 1 has numbers that are not finite"),
    "over float32": (lambda p: predict(p, list(with_number(1e300))), "sample 1 has numbers that are not finite"),
    "no labels": (
        lambda p: protofleet.load_model(p / "given").confusion(np.zeros((1, 3, 8, 8)), None),
        "labels is NoneType; give a list with one class for each sample",
    ),
    "labels": (
        lambda p: protofleet.load_model(p / "given").confusion(np.zeros((1, 3, 8, 8)), ["oval"]),
        "'oval' is not a class of this model; the classes are circle, line, square",
    ),
    "more labels": (
        lambda p: protofleet.load_model(p / "given").confusion(np.zeros((1, 3, 8, 8)), [0, 1]),
        "there are 2 labels for 1 samples",
    ),
    "no picture": (lambda p: protofleet.load_model(p / "given").predict(p / "small.toml"), "small.toml"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_refused_with_an_error_of_one_line(place, mistake):
    do, words = MISTAKES[mistake]
    with pytest.raises((protofleet.SettingsError, protofleet.RunError), match=words) as raised:
        do(place)
    assert "\n" not in str(raised.value)
