"""The measured cost of the codecs: the tool computes it from runs, and all pages and the command show the same."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from protofleet.cli.main import main
from protofleet.lab.report.measured_codecs import read_measured, seed_text
from protofleet.protocol.settings.named_codecs import NAMED
from tests.lab.report.test_compare import DOWN, finished
from tools.pages import codec_figures as tool

README = Path(__file__).parents[3] / "README.md"
AVG = {  # Codec -> bytes that go up in a round, and the accuracy of each seed in the last four evaluations.
    "off": (100_000, {1: 0.80, 2: 0.70, 3: 0.60, 4: 0.10}),
    "small": (1_000, {1: 0.81, 2: 0.69, 3: 0.63}),
    "safe": (10_000, {1: 0.80}),
}


def runs_of(folder, name, table, **more):
    return [
        finished(
            folder / f"{name}-{codec}-s{seed}", f"{name}-{codec}-s{seed}",
            [0.0, 0.1, *[value - 0.01, value + 0.01] * 2], seed=seed, up=up, **more,
        )
        for codec, (up, values) in table.items()
        for seed, value in values.items()
    ]  # fmt: skip


@pytest.fixture
def figures(tmp_path):
    folders = runs_of(tmp_path, "avg", AVG)
    other = {"off": (70, {1: 0.5}), "small": (30, {1: 0.4})}
    folders += runs_of(tmp_path, "proto", other, method="fedproto", reports="personal")
    tool.write_figures(folders, {"avg": "a.toml", "proto": "p.toml --set x=1"}, "c0ffee", tmp_path / "f.json")
    return tmp_path / "f.json"


def test_a_codec_is_compared_with_the_runs_of_the_same_seeds(figures):
    avg, proto = read_measured(figures)
    assert (avg.name, avg.experiment, avg.rounds, avg.commit, avg.seeds) == (
        "avg", "a.toml", 5, "c0ffee", (1, 2, 3, 4),
    )  # fmt: skip
    assert (proto.method, proto.experiment, proto.accuracy) == ("fedproto", "p.toml --set x=1", 50.0)
    safe, small = avg.codecs
    assert (safe.codec, small.codec) == ("safe", "small")
    assert (safe.seeds, safe.points) == ((1,), "+0.0")
    apart = [1.0, -1.0, 3.0]
    spread = (sum((one - 1) ** 2 for one in apart) / 2) ** 0.5
    assert small.seeds == (1, 2, 3) and small.difference == pytest.approx(fmean(apart))
    assert small.error == pytest.approx(spread / 3**0.5, abs=1e-3)
    plain, coded = (5 * up + 6 * DOWN for up in (100_000, 1_000))
    assert small.arrays == coded and small.times_arrays == pytest.approx(plain / coded, abs=1e-3)
    assert small.times_wire == pytest.approx((plain + 16) / (coded + 16), abs=1e-3)


def test_new_runs_replace_the_figures_of_their_method_only(figures, tmp_path):
    before = read_measured(figures)
    again = runs_of(tmp_path / "new", "proto", {"off": (70, {1: 0.5}), "small": (7, {1: 0.5})})
    tool.write_figures(again, {}, "", figures)
    avg, proto = read_measured(figures)
    assert avg == before[0] and proto.experiment == "p.toml --set x=1"
    assert proto.codecs[0].points == "+0.0" and proto.commit == "unknown"
    assert json.loads(figures.read_text())["methods"][0]["seeds"] == [1, 2, 3, 4]


def test_runs_that_cannot_be_compared_are_refused_with_the_fix(tmp_path):
    path, odd = tmp_path / "f.json", {"small": (7, {1: 0.5})}
    folders = runs_of(tmp_path, "proto", odd)
    for experiments, words in (
        ({}, "say it with --experiment proto="),
        ({"proto": "p"}, "no run with codec off"),
    ):
        with pytest.raises(SystemExit, match=words):
            tool.write_figures(folders, experiments, "", path)
    folders += runs_of(tmp_path, "proto", {"off": (7, {2: 0.5})})
    with pytest.raises(SystemExit, match="no run with codec small has the seed"):
        tool.write_figures(folders, {"proto": "p"}, "", path)


def test_the_page_has_the_figures_and_each_method_has_a_table(figures):
    text = tool.PAGE.read_text()
    assert tool.generate(text) == text, "run python -m tools.pages.codec_figures"
    page = tool.generate(text, read_measured(figures))
    assert "**avg** (`a.toml`, 5 rounds, seeds 1 to 4" in page and "| small | 3 |" in page
    assert "**proto** (`p.toml --set x=1`" in page and page.count(tool.HEAD) == 2


def test_the_command_and_the_readme_show_the_stored_figures(capsys):
    figures = read_measured()
    assert main(["codecs", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["measured"]] == [
        one.name for one in figures
    ]
    assert main(["codecs"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for method in figures:
        assert f"{method.name}: {method.experiment}" in shown and f"commit {method.commit}" in shown
        assert {one.codec for one in method.codecs} <= NAMED.keys()
        for one in method.codecs:
            assert f"{one.codec} {one.times_arrays:.1f} times fewer bytes {one.points} points" in shown
    (avg,) = (method for method in figures if method.name == "fedavg")
    first, last = avg.codecs[0], avg.codecs[-1]
    seeds = f"{len(first.seeds)} to {len(last.seeds)} seeds"
    times = f"{first.times_wire:.1f} to {last.times_wire:.0f} times fewer bytes"
    assert f"FedAvg, {seeds}: {times}, at {first.points} to {last.points} points" in README.read_text()


@pytest.mark.parametrize(
    ("seeds", "words"), [([3], "seed 3"), ([1, 2, 3], "seeds 1 to 3"), ([1, 3], "seeds 1, 3")]
)
def test_consecutive_seeds_are_written_as_a_range(seeds, words):
    assert seed_text(seeds) == words
