"""Tests of `protofleet methods --cost` with a codec: it computes bytes, and real updates never have more."""

import json
from os.path import relpath
from pathlib import Path

import numpy as np
import pytest

from protofleet.cli.main import main
from protofleet.lab.report.measured_codecs import read_measured
from protofleet.methods.contract.overview import Reference
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.coding.coder import encode_kind
from protofleet.protocol.settings.named_codecs import stages_of

DIGITS = Path(__file__).parents[2] / "experiments" / "digits"
DOCS = Path(__file__).parents[2] / "docs"


def costs_of(capsys, *arguments):
    assert main(["methods", "--cost", *arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    return {one["name"]: one for one in said["costs"]}, said["about"]


@pytest.mark.parametrize("codec", ["small", "smallest"])
def test_a_real_update_has_the_expected_bytes_and_at_most_the_largest_number(capsys, codec):
    found, about = costs_of(capsys, "fedavg", "--codec", codec)
    assert f"codec {codec}" in about
    reference, dice = Reference(), np.random.default_rng(1)
    plan = Plan("fedavg", reference.classes, 2, size=reference.size, network=reference.network)
    held = {f"weights.{name}": value.numpy() for name, value in plan.model().state_dict().items()}
    moved = {n: (v + 0.01 * dice.standard_normal(v.shape)).astype(v.dtype) for n, v in held.items()}
    codec = stages_of(codec, ("weights",))
    for way, stage in (("up", codec.up["weights"]), ("down", codec.down["weights"])):
        size, said = len(encode_kind(moved, stage, held, {}).data), found["fedavg"][way]
        assert said["before"] == sum(value.nbytes for value in held.values())
        assert size <= said["most"] and said["expected"] == pytest.approx(size, rel=0.01)


def test_codec_off_saves_no_bytes_and_a_size_that_depends_on_numbers_has_no_estimate(capsys):
    found, about = costs_of(capsys, "fedproto", "--codec", "off")
    up = found["fedproto"]["up"]
    assert "codec off" in about and up["before"] == up["most"] == up["expected"] == 20_640
    found, _ = costs_of(capsys, "fedproto", "--codec", "small")
    up = found["fedproto"]["up"]
    assert up["before"] == 20_640 > 5 * up["most"] and up["expected"] is None
    assert main(["methods", "--cost", "fedproto", "--codec", "small"]) == 0
    said = capsys.readouterr().out
    assert "These are computed, not\nmeasured." in said and f"{up['most']:,}            -\n" in said


def test_a_run_without_a_codec_setting_has_a_lossless_codec(capsys):
    found, about = costs_of(capsys, "fedavg")
    up = found["fedavg"]["up"]
    assert "codec not set" in about and 0 <= up["expected"] - up["before"] < 200


def test_the_page_of_codecs_has_the_computed_bytes_of_a_lossless_update(capsys):
    up = costs_of(capsys, "fedproto")[0]["fedproto"]["up"]
    page = " ".join((DOCS / "codecs.md").read_text().split())
    assert f"computes {up['expected']:,} bytes for such an update, and {up['before']:,} bytes with" in page


def test_the_costs_of_an_experiment_use_its_codec_and_agree_with_measured_bytes(capsys, tmp_path):
    """The measured figures are bytes of a whole run of six devices; the last evaluation is one more broadcast."""
    (measured,) = (one for one in read_measured() if one.name == "fedavg")
    devices, rounds = 6, measured.rounds
    for codec in measured.codecs:
        path = tmp_path / f"{codec.codec}.toml"
        path.write_text(f'base = "{relpath(DIGITS / "fedavg.toml", tmp_path)}"\ncodec = "{codec.codec}"\n')
        found, about = costs_of(capsys, str(path))
        assert f"{codec.codec}.toml, fedavg" in about and f"codec {codec.codec}" in about
        up, down = found["fedavg"]["up"], found["fedavg"]["down"]
        assert codec.arrays <= rounds * (devices * up["most"] + down["most"])
        if up["expected"] is not None:
            computed = rounds * (devices * up["expected"] + down["expected"])
            assert computed == pytest.approx(codec.arrays, rel=0.06)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fedavg", "--codec", "small"], "--codec needs --cost"),
        (["--cost", "nosuch.toml"], "there is no file nosuch.toml"),
        (["--cost", "nosuch"], "no method 'nosuch'"),
    ],
)
def test_costs_that_cannot_be_computed_give_one_line_of_error(capsys, arguments, words):
    assert main(["methods", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1


def test_the_costs_of_a_method_with_one_upload_contain_the_cost_of_a_late_device(capsys):
    assert main(["methods", "--cost", "fedncm"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    head = 10 * 512 * 4 + 10 * 8  # The rows of all classes, and their labels.
    assert (
        "fedncm: each device sends this once in a run. A device that joins later costs its own upload, "
        in said
    )
    assert f"and one new head for each device: {head:,} bytes (fedncm)." in said
    assert main(["methods", "--cost", "fedavg"]) == 0
    assert "once" not in capsys.readouterr().out
