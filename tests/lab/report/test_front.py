"""The front of accuracy over bytes: the runs that no other run beats, and the advice for a budget."""

import json

import pytest

from protofleet.cli.main import main
from protofleet.lab.report.comparison import read_groups
from protofleet.lab.report.front import front_of
from tests.lab.report.test_compare import finished

RUNS = {  # Name -> bytes that go up in a round, accuracy of each seed, and the codec.
    "large": (1_000_000, (0.80, 0.82), "off"),
    "middle": (100_000, (0.79, 0.80), "safe"),
    "wasteful": (200_000, (0.70, 0.71), "medium"),
    "tiny": (1_000, (0.50, 0.51), "small"),
}


@pytest.fixture
def folders(tmp_path):
    return [
        finished(
            tmp_path / f"{name}-s{seed}", f"{name}-s{seed}", [0.1, 0.2, *[value] * 4], seed=seed, up=up,
            settings=f'codec = "{codec}"',
        )
        for name, (up, values, codec) in RUNS.items()
        for seed, value in enumerate(values, 1)
    ]  # fmt: skip


def test_a_run_is_on_the_front_if_no_run_has_a_higher_accuracy_with_as_few_bytes(folders):
    found = {point.name: point for point in front_of(read_groups(folders))}
    assert list(found) == ["tiny", "middle", "wasteful", "large"]
    assert {name: point.beaten_by for name, point in found.items()} == {
        "tiny": "", "middle": "", "wasteful": "middle", "large": "",
    }  # fmt: skip
    assert found["middle"].codec == "safe" and found["large"].codec == "off"


def test_the_accuracy_is_the_mean_of_the_last_four_evaluations_with_its_standard_error(folders):
    (large,) = (point for point in front_of(read_groups(folders)) if point.name == "large")
    assert large.accuracies == pytest.approx((0.80, 0.82))
    assert large.error == pytest.approx(0.01)
    assert large.text == "81.0 ± 1.0"


def test_compare_shows_the_front_in_the_table_and_on_the_page(folders, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["compare", *map(str, folders), "--front", "--html", str(page)]) == 0
    said = capsys.readouterr().out.split("Accuracy over bytes: the front")[1]
    assert [line.split()[0] for line in said.splitlines()[2:6]] == ["tiny", "middle", "wasteful", "large"]
    text = page.read_text()
    assert "Accuracy over bytes: the front" in text and "the axis is logarithmic" in text
    assert main(["compare", *map(str, folders)]) == 0
    assert "the front" not in capsys.readouterr().out


ADVICE = {
    "--budget 600kB": ("with codec safe (middle): 79.5 ± 0.5 %", "no other run that fits is within two"),
    "--budget 1GB": ("with codec off (large)", "with 2 seeds, middle may be as accurate"),
    "--accuracy 0.45": ("with codec small (tiny)", ""),
    "--accuracy 0.75": ("with codec safe (middle)", "large may be as accurate"),
    "--accuracy 0.6 --budget 2MB": ("with codec safe (middle)", ""),
}


@pytest.mark.parametrize("options", ADVICE)
def test_the_advice_names_a_run_and_states_its_certainty(options, folders, capsys):
    assert main(["advise", *map(str, folders), *options.split()]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and all(words in said for words in ADVICE[options])


def test_the_advice_from_one_seed_has_a_warning(folders, capsys):
    assert main(["advise", str(folders[0]), "--budget", "1GB"]) == 0
    assert "one seed says nothing about chance" in capsys.readouterr().out


def stop(folder, rounds_done, rounds, by="budget"):
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"stopped": "words", "stopped_by": by, "rounds_done": rounds_done, "rounds": rounds}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_run_that_was_stopped_early_is_marked_and_is_not_advised(folders, tmp_path, capsys):
    stop(tmp_path / "middle-s2", 1, 2)
    page = tmp_path / "page.html"
    assert main(["compare", *map(str, folders), "--front", "--html", str(page)]) == 0
    mark = "middle (1 of 2 seeds stopped, one after 1 of 2 rounds)"
    assert mark in capsys.readouterr().out.split("the front")[1] and mark in page.read_text()
    assert main(["advise", *map(str, folders), "--accuracy", "0.6"]) == 0
    said = capsys.readouterr().out
    assert "(wasteful)" in said and said.endswith(f" Left out: {mark}.\n")
    assert main(["advise", *map(str, folders), "--accuracy", "0.99"]) == 1
    assert capsys.readouterr().err.endswith(f" Lower --accuracy. Left out: {mark}.\n")


def test_no_run_is_advised_if_all_runs_were_stopped_early(folders, capsys):
    stop(folders[0], 1, 2)
    assert main(["advise", str(folders[0]), "--budget", "1GB"]) == 1
    assert "each run was stopped early: large (stopped after 1 of 2 rounds)" in capsys.readouterr().err


def test_a_run_that_ended_by_its_stop_rule_or_in_its_last_round_can_be_advised(folders, capsys):
    for early in ({"rounds_done": 2}, {"rounds_done": 1, "by": "policy.stop"}):
        stop(folders[0], **early, rounds=2)
        assert main(["advise", str(folders[0]), "--budget", "1GB"]) == 0
        assert "stopped" not in capsys.readouterr().out


CODECS = {
    "": ("not set", "Use fedavg without a setting of codec (run)"),
    'codec = "off"': ("off", "Use fedavg with codec off (run)"),
    'codec.up.weights.form = "int8"': ("own stages", "Use fedavg with codec stages of its own (run)"),
    None: ("not recorded", "Use fedavg with a codec that its folder does not record (run)"),
}


@pytest.mark.parametrize("settings", CODECS)
def test_the_codec_of_a_run_has_the_name_from_its_settings(settings, tmp_path, capsys):
    run = finished(tmp_path / "run", "run", [0.1, 0.2], settings=settings or "")
    if settings is None:
        (run / "experiment.toml").unlink()
    shown, advised = CODECS[settings]
    assert front_of(read_groups([run]))[0].codec == shown
    assert main(["advise", str(run), "--budget", "1GB"]) == 0
    assert advised in capsys.readouterr().out


REFUSED = {
    "--budget 1kB": "no run has at most 1.0 kB of tensors; tiny has the fewest, 5.2 kB. Raise --budget.\n",
    "--accuracy 0.99": "no run reaches 99.0 %; large has the highest accuracy, 81.0 %. Lower --accuracy.\n",
    "--accuracy 0.99 --budget 600kB": (
        "no run with at most 600.0 kB of tensors reaches 99.0 %; middle has the highest accuracy, 79.5 %. "
        "Lower --accuracy.\n"
    ),
    "--accuracy 0.8 --budget 600kB": (
        "no run with at most 600.0 kB of tensors reaches 80.0 %; middle has the highest accuracy, 79.5 %. "
        "Raise --budget or lower --accuracy.\n"
    ),
    "--budget 0B": "it is '0B', it must be a number and a unit, such as 1MB or '200 MB', from 1B to 1000TB",
    "--budget 1001TB": "it is '1001TB', it must be a number and a unit",
    "--budget much": "it must be a number and a unit, such as 1MB or '200 MB'",
    "": "neither --budget nor --accuracy is given",
}


@pytest.mark.parametrize("options", REFUSED)
def test_the_error_for_impossible_advice_names_the_reason_and_a_fix(options, folders, capsys):
    try:
        code = main(["advise", *map(str, folders), *options.split()])
    except SystemExit as ended:
        code = ended.code
    assert code == (1 if REFUSED[options].startswith("no run") else 2)
    assert REFUSED[options] in capsys.readouterr().err
