"""A sweep tries a grid with every seed, chooses by validation, and warns if the grid was not wide enough."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protofleet.cli.main import main
from protofleet.coordinator.observe.summary_file import write_summary
from protofleet.lab.local import batch
from protofleet.lab.local.experiment import read_experiment
from protofleet.lab.local.grid import beside_others, plan_grid, read_axis
from protofleet.lab.local.sweep_file import Wish, planned
from protofleet.lab.local.trials import read_trials, write_trials
from protofleet.protocol.settings.reader import SettingsError, encode, write_toml
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.command.errors import RunError
from tests.lab.local.test_run import furnished, lines, protofleet

FILE = 'name = "base"\nrounds = 2\n[method]\nname = "fedprox"\n[network]\nname = "mlp"\n'
LR = ("0.02", "0.05", "0.1")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "base.toml"
    path.write_text(FILE)
    return path


def finish(runs, trial, validation, test, ended="finished"):
    """Write the folder of a finished run, whose first round of two was the best on validation images."""
    folder = runs / trial.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.toml").write_text(write_toml(encode(trial)))
    summary = {
        "name": trial.name, "method": trial.method["name"], "reports": "global", "rounds": 2, "seed": trial.seed,
        "payload": {"up": {"weights": 70}, "down": {"weights": 30}}, "wire": {}, "ended": ended,
    }  # fmt: skip
    write_summary(folder / "summary.json", summary, Disk(durable=False))
    rounds = [(1, 0.0, 0.0), (2, validation + 0.1, test - 0.1), (3, validation, test)]
    with (folder / "rounds.jsonl").open("w") as written:
        for number, chosen_by, shown in rounds:
            views = {"accuracy": {"global": {"d": shown}}, "validation": {"global": {"d": chosen_by}}}
            if validation < 0:
                views["validation"] = {}
            written.write(json.dumps({"round": number, "payload": {"up": {}, "down": {}}, **views}) + "\n")


def finished(grid, runs, scores):
    """Finish every trial of the grid with the (validation, test) of its point; validation grows by 0.01 per seed."""
    for point in grid.points:
        for i, trial in enumerate(point.trials):
            validation, test = scores[point.values]
            finish(runs, trial, validation + 0.01 * i, test)


def test_every_point_is_tried_with_every_seed_and_the_names_contain_its_values(file):
    grid = plan_grid(
        file, [read_axis("method.lr=0.02,0.1"), read_axis("method.mu=0,1")], [1, 2], ["rounds=3"]
    )
    assert [trial.name for trial in grid.trials][:3] == [
        "base-lr-0.02-mu-0-s1", "base-lr-0.02-mu-0-s2", "base-lr-0.02-mu-1-s1",
    ]  # fmt: skip
    assert len(grid.trials) == 8 and {trial.rounds for trial in grid.trials} == {3}
    last = grid.trials[-1]
    assert (last.method["lr"], last.method["mu"], last.seed) == (0.1, 1, 2)


def test_trials_run_in_one_process_unless_the_file_sets_processes(file):
    axes = [read_axis("method.lr=0.02")]
    assert {trial.devices.processes for trial in plan_grid(file, axes, [1], []).trials} == {1}
    own = plan_grid(file, axes, [1], ["devices.processes='each'"])
    assert {trial.devices.processes for trial in own.trials} == {"each"}


def test_an_extended_grid_keeps_the_names_of_its_trials(file):
    few = plan_grid(file, [read_axis("method.lr=0.05,0.1")], [1], [])
    more = plan_grid(file, [read_axis("method.lr=0.02,0.05,0.1,0.2")], [1, 2], [])
    assert {trial.name for trial in few.trials} <= {trial.name for trial in more.trials}


def test_values_that_do_not_fit_into_a_name_get_different_names(file):
    domains = [read_axis("devices.clients={mnist=1,synth=2},{mnist=2, synth=1}")]
    names = [point.name for point in plan_grid(file, domains, [1], []).points]
    assert len(set(names)) == 2 and all(name.startswith("base-") and len(name) <= 50 for name in names)
    long = plan_grid(file, [read_axis(f"method.weight_decay={0.1 + 1e-15},{0.1 + 2e-15}")] * 1, [1], [])
    assert len({point.name for point in long.points}) == 2


@pytest.mark.parametrize(
    ("axis", "words"),
    [
        ("method.lr", "'method.lr' is not of the form table.key=value,value"),
        ("=1,2", "is not of the form"),
        ("method.lr=0.1,,0.2", "is not of the form"),
        ("seed=1,2", "the seeds are set with --seeds"),
        ("name='a','b'", "every trial gets its own name"),
        ("method.lr=0.1,0.1", "has 0.1 twice"),
        ("method.lr=0.1,1e-1", "has 0.1 and 1e-1, which are the same value"),
    ],
)
def test_a_wrong_axis_is_refused_with_the_reason(axis, words):
    with pytest.raises(SettingsError, match=words):
        read_axis(axis)


SWEEP = 'experiment = "base.toml"\nseeds = [4, 5]\nset = ["rounds=3"]\n[grid]\n"method.lr" = [0.02, 0.1]\n'


def test_a_sweep_file_contains_the_grid_for_an_experiment_file(file):
    path = file.parent / "rates.toml"
    path.write_text(SWEEP + '"network.head" = ["linear", "mlp"]\n')
    grid, choose = planned(path, Wish())
    assert grid.name == "rates" and choose == "validation"
    assert [trial.name for trial in grid.trials][:2] == [
        "base-lr-0.02-head-linear-s4",
        "base-lr-0.02-head-linear-s5",
    ]
    assert {trial.rounds for trial in grid.trials} == {3} and len(grid.points) == 4


def test_options_of_the_command_line_replace_values_of_the_sweep_file(file):
    path = file.parent / "rates.toml"
    path.write_text(SWEEP + '"method.mu" = [0, 1]\n')
    wish = Wish([read_axis("method.lr=0.5")], [7], ["rounds=9"], "best-validation")
    grid, choose = planned(path, wish)
    assert [point.values for point in grid.points] == [
        ("0.5", "0"),
        ("0.5", "1"),
    ] and choose == "best-validation"
    assert {(trial.rounds, trial.seed) for trial in grid.trials} == {(9, 7)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FILE, r"has no table \[grid\], and no --grid is given; give one with --grid, for example"),
        (SWEEP.replace("0.02, 0.1", ""), "rates.toml: method.lr has no value"),
        (SWEEP.replace("0.02, 0.1", "0.1, 0.1"), "rates.toml: method.lr has 0.1 twice"),
        (
            SWEEP.replace("method.lr", "seed"),
            "seed cannot be an axis, because the seeds are set with --seeds",
        ),
        (SWEEP.replace("seeds", "sedes"), "rates.toml: .*sedes.*seeds"),
        (SWEEP.replace("base.toml", "none.toml"), "there is no file .*none.toml"),
    ],
)
def test_a_wrong_sweep_file_is_refused_with_the_reason(file, text, words):
    path = file.parent / "rates.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=words):
        planned(path, Wish())


def test_wrong_values_and_repeated_axes_or_seeds_are_refused_before_a_run_starts(file, tmp_path):
    with pytest.raises(SettingsError, match=r"method\.lr is -1.*must be above 0"):
        plan_grid(file, [read_axis("method.lr=0.1,-1")], [1], [])
    with pytest.raises(SettingsError, match="--grid names method.lr twice"):
        plan_grid(file, [read_axis("method.lr=0.1"), read_axis("method.lr=0.2")], [1], [])
    with pytest.raises(SettingsError, match="--seeds has the seed 4 twice"):
        plan_grid(file, [read_axis("method.lr=0.1")], [4, 4], [])
    assert not (tmp_path / "runs").exists()


def test_the_trial_is_chosen_by_validation_accuracy_and_not_by_test_accuracy(file, tmp_path):
    grid = plan_grid(file, [read_axis(f"method.lr={','.join(LR)}")], [1, 2], [])
    finished(grid, tmp_path, {("0.02",): (0.5, 0.9), ("0.05",): (0.8, 0.6), ("0.1",): (0.7, 0.95)})
    trials = read_trials(grid, tmp_path, "validation")
    assert trials.chosen.point.values == ("0.05",) and trials.warnings() == []
    assert trials.chosen.validation == pytest.approx([0.8, 0.81]) and trials.chosen.test == [0.6, 0.6]
    assert "chosen: method.lr = 0.05" in trials.lines()
    assert "0.05" in trials.table().text() and "80.5 ± 0.7" in trials.table().text()


def test_the_choice_best_validation_compares_the_best_rounds(file, tmp_path):
    grid = plan_grid(file, [read_axis("method.lr=0.02,0.05")], [1], [])
    finished(grid, tmp_path, {("0.02",): (0.5, 0.9), ("0.05",): (0.8, 0.6)})
    best = read_trials(grid, tmp_path, "best-validation").chosen
    assert best.validation == pytest.approx([0.9]) and best.test == pytest.approx([0.5])


@pytest.mark.parametrize(("best", "warned"), [("0.02", True), ("0.05", False), ("0.1", True)])
def test_a_choice_at_the_edge_of_the_grid_gives_a_warning(file, tmp_path, best, warned):
    grid = plan_grid(file, [read_axis("method.lr=0.05,0.02,0.1")], [1, 2], [])
    finished(grid, tmp_path, {(v,): (0.8 if v == best else 0.5, 0.6) for v in LR})
    (warning, *more) = [*read_trials(grid, tmp_path, "validation").warnings(), ""]
    assert warning.startswith(f"method.lr = {best} is an end of its grid") == warned and not any(more)


def test_an_axis_of_one_value_or_of_words_has_no_edge_and_one_seed_gives_a_warning(file, tmp_path):
    axes = [read_axis("method.lr=0.1"), read_axis("network.head='linear','mlp'")]
    grid = plan_grid(file, axes, [1], [])
    finished(grid, tmp_path, {("0.1", "'linear'"): (0.5, 0.5), ("0.1", "'mlp'"): (0.6, 0.5)})
    (warning,) = read_trials(grid, tmp_path, "validation").warnings()
    assert warning.startswith("one seed")


def all_at(grid, runs, scores):
    """Finish every trial of the grid with the validation score of its point."""
    for point in grid.points:
        for trial in point.trials:
            finish(runs, trial, scores[point.values[0]], 0.5)


def test_a_choice_within_the_noise_gives_a_warning_in_the_text_and_on_the_page(file, tmp_path):
    few = ["devices={clients={optdigits=2}}", "data.samples=20"]
    grid = plan_grid(file, [read_axis("method.lr=0.02,0.05,0.1")], [1, 2], few)
    all_at(grid, tmp_path, {"0.02": 0.1, "0.05": 0.1, "0.1": 0.05})
    trials = read_trials(grid, tmp_path, "validation")
    warning = (
        "the choice may be noise: method.lr = 0.02 has the same accuracy; all 2 seeds have one accuracy; "
        "4 validation samples decide, fewer than 50; 10.0 % is not above chance, 10.0 % of 10 classes"
    )
    (said,) = trials.warnings()
    assert said.startswith(warning) and f"warning: {said}" in trials.lines()
    assert f"Warning: {warning}" in write_trials(trials, tmp_path).read_text()


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"0.02": 0.3, "0.05": 0.9, "0.1": 0.9}, "method.lr = 0.1 has the same accuracy; all 2 seeds"),
        (
            {"0.02": 0.05, "0.05": 0.09, "0.1": 0.06},
            "all 2 seeds have one accuracy; 9.0 % is not above chance",
        ),
    ],
)
def test_each_sign_of_noise_is_reported_separately(file, tmp_path, scores, words):
    grid = plan_grid(file, [read_axis("method.lr=0.02,0.05,0.1")], [1, 2], [])
    all_at(grid, tmp_path, scores)
    (said,) = read_trials(grid, tmp_path, "validation").warnings()
    assert said.startswith(f"the choice may be noise: {words}") and "validation samples decide" not in said


def test_points_at_most_one_deviation_below_the_choice_are_named(file, tmp_path):
    grid = plan_grid(file, [read_axis("method.lr=0.02,0.05,0.1")], [1, 2], [])
    finished(grid, tmp_path, {("0.02",): (0.5, 0.6), ("0.05",): (0.8, 0.6), ("0.1",): (0.796, 0.6)})
    trials = read_trials(grid, tmp_path, "validation")
    assert [trial.point.values for trial in trials.near] == [("0.1",)]
    assert "at most a deviation below it: method.lr = 0.1" in trials.lines()


def test_a_point_without_the_result_of_a_seed_is_never_chosen(file, tmp_path):
    grid = plan_grid(file, [read_axis("method.lr=0.02,0.05")], [1, 2], [])
    scores = {"0.02": 0.5, "0.05": 0.9}
    for trial in grid.trials[:3]:
        finish(tmp_path, trial, scores[str(trial.method["lr"])], 0.5)
    finish(tmp_path, grid.trials[3], 0.99, 0.5, ended="diverged")
    trials = read_trials(grid, tmp_path, "validation")
    assert trials.chosen.point.values == ("0.02",) and "1 of 2 without a result" in trials.table().text()
    nothing = plan_grid(file, [read_axis("method.lr=0.3")], [1], [])
    assert read_trials(nothing, tmp_path, "validation").lines()[0].startswith("warning: nothing is chosen")


def test_trials_without_validation_samples_are_refused_with_a_fix(file, tmp_path):
    grid = plan_grid(file, [read_axis("method.lr=0.02")], [1], [])
    finish(tmp_path, grid.trials[0], -1.0, 0.5)
    with pytest.raises(RunError, match=r"set data\.validation"):
        read_trials(grid, tmp_path, "validation")


def test_the_results_are_written_as_json_as_a_table_and_as_a_page(file, tmp_path):
    grid = plan_grid(file, [read_axis(f"method.lr={','.join(LR)}"), read_axis("method.mu=0,1")], [1, 2], [])
    finished(grid, tmp_path, {p.values: (0.5 + 0.01 * i, 0.4 + 0.01 * i) for i, p in enumerate(grid.points)})
    page = write_trials(read_trials(grid, tmp_path, "validation"), tmp_path)
    found = json.loads((page.parent / "trials.json").read_text())
    assert found["chosen"] == {"method.lr": "0.1", "method.mu": "1"} and len(found["warnings"]) == 2
    assert found["trials"][0]["runs"] == ["base-lr-0.02-mu-0-s1", "base-lr-0.02-mu-0-s2"]
    assert found["trials"][0]["tensor_bytes"] == [100, 100]
    shown, markdown = page.read_text(), (page.parent / "trials.md").read_text()
    assert "| 0.1 | 1 | 2 | 55.5 ± 0.7 | 45.0 |" in markdown
    assert "Where the figures come from" in markdown and "Where the figures come from" in shown
    assert "Accuracy over method.lr and method.mu" in shown
    assert (
        "Chosen: method.lr = 0.1, method.mu = 1." in shown and "Warning: method.lr = 0.1 is an end" in shown
    )


def test_a_sweep_runs_only_the_missing_trials_and_prints_its_warnings(file, tmp_path, monkeypatch, capsys):
    started = []

    def run(experiment, runs, launcher, track=()):
        started.append(experiment.name)
        (runs / experiment.name / "experiment.toml").unlink(missing_ok=True)
        (runs / experiment.name).rmdir()
        finish(runs, experiment, experiment.method["lr"], 0.5)

    monkeypatch.setattr(batch, "run_experiment", run)
    words = ["sweep", str(file), "--seeds", "1", "2", "--runs", str(tmp_path / "runs"), "--grid"]
    assert main([*words, "method.lr=0.02,0.05"]) == 0
    assert len(started) == 4 and "warning: method.lr = 0.05 is an end" in capsys.readouterr().out
    assert main([*words, "method.lr=0.02,0.05,0.1"]) == 0
    assert started[4:] == ["base-lr-0.1-s1", "base-lr-0.1-s2"]


@pytest.mark.slow
@pytest.mark.broker
def test_a_trial_in_one_process_gives_the_same_results_as_a_process_for_each_device(tmp_path):
    place = furnished(tmp_path)
    done = protofleet("sweep", "small.toml", "--grid", "method.lr=0.01,0.05", "--seeds", "1", "2", cwd=place)
    assert done.returncode == 0 and "chosen: method.lr = " in done.stdout, done.stdout + done.stderr
    trial = replace(read_experiment(place / "small.toml", ["method.lr=0.05", "seed=2"]), name="apart")
    (place / "apart.toml").write_text(write_toml(encode(trial)))
    done = protofleet("run", "apart.toml", "--set", "devices.processes='each'", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    (hosted, apart) = (lines(place, name) for name in ("small-lr-0.05-s2", "apart"))
    for one, other in zip(hosted, apart, strict=True):
        for key in ("accuracy", "validation", "loss", "payload"):
            assert one.get(key) == other.get(key)


def test_different_spellings_of_a_number_give_the_same_axis(file):
    assert read_axis("method.lr=0.10,2e-1") == read_axis("method.lr=0.1,0.2")


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["method.lr=0.2"], "--set method.lr would change nothing, because it is an axis of the grid"),
        (["seed=4"], "--set seed would change nothing, because the seeds are set with --seeds"),
        (
            ["data.validation=0"],
            "has data.validation = 0, but the best trial is chosen by validation samples",
        ),
        (["method.nosuch=1"], "base.toml with --set: method.nosuch"),
    ],
)
def test_settings_without_effect_on_a_sweep_are_refused_before_it_starts(file, sets, words):
    with pytest.raises(SettingsError, match=words):
        plan_grid(file, [read_axis("method.lr=0.1")], [1], sets)


def test_the_error_for_an_unknown_axis_names_the_option_grid(file):
    with pytest.raises(SettingsError, match=r"base.toml with --grid: .*nosuch"):
        plan_grid(file, [read_axis("method.nosuch=1,2")], [1], [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('experiment = "base.toml"\nseeds = []\n[grid]\n"method.lr" = [0.1]\n', "seeds is empty"),
        ('experiment = "base.toml"\n[grid]\n', r"\[grid\] is empty"),
        ('experiment = "base.toml"\n[grid]\nmethod.lr = [0.1]\n', r'as in "method.lr" = \[...\]'),
        ('experiment = "odd.toml"\n[grid]\n"method.lr" = [0.1]\n', "is a sweep and not an experiment"),
    ],
)
def test_a_sweep_file_without_a_valid_grid_is_refused_with_the_reason(file, text, words):
    path = file.parent / "odd.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=words):
        planned(path, Wish())


def test_a_wider_axis_keeps_its_place_among_the_axes(file):
    path = file.parent / "both.toml"
    path.write_text('experiment = "base.toml"\n[grid]\n"method.lr" = [0.1]\n"method.mu" = [0.5]\n')
    few, _ = planned(path, Wish())
    more, _ = planned(path, Wish(grid=[read_axis("method.lr=0.1,0.2")]))
    assert {trial.name for trial in few.trials} < {trial.name for trial in more.trials}


def test_trials_with_other_settings_get_other_names_and_are_found_again(file, tmp_path):
    axes = [read_axis("method.lr=0.02,0.1")]
    first = plan_grid(file, axes, [1], [])
    for trial in first.trials:
        finish(tmp_path, trial, 0.5, 0.5)
    other = beside_others(plan_grid(file, axes, [1], ["rounds=3"]), tmp_path)
    assert beside_others(first, tmp_path) == first
    assert not {trial.name for trial in first.trials} & {trial.name for trial in other.trials}
    finish(tmp_path, other.trials[0], 0.5, 0.5)
    assert beside_others(plan_grid(file, axes, [1], ["rounds=3"]), tmp_path) == other


def test_results_of_another_axis_are_renamed_and_those_of_a_smaller_grid_are_replaced(file, tmp_path, capsys):
    for text, asides in (("method.lr=0.1", 0), ("method.lr=0.1,0.2", 0), ("method.mu=0,1", 1)):
        grid = plan_grid(file, [read_axis(text)], [1], [])
        for trial in grid.trials:
            if not (tmp_path / trial.name).exists():
                finish(tmp_path, trial, 0.5, 0.5)
        write_trials(read_trials(grid, tmp_path, "validation"), tmp_path)
        assert len(list((tmp_path / "sweeps").glob("base.*"))) == asides
    assert "the earlier sweep, which varied method.lr, is now in" in capsys.readouterr().out


def test_a_point_inside_the_grid_is_chosen_among_equal_points(file, tmp_path):
    grid = plan_grid(file, [read_axis("method.lr=0.02,0.05,0.1")], [1], [])
    finished(grid, tmp_path, {(value,): (0.5, 0.5) for value in LR})
    trials = read_trials(grid, tmp_path, "validation")
    assert trials.chosen.point.values == ("0.05",)
    assert [trial.point.values for trial in trials.near] == [("0.02",), ("0.1",)]
    assert not any("end of its grid" in warning for warning in trials.warnings())


def test_seeds_from_an_earlier_version_belong_to_the_same_point(file, tmp_path):
    """The earlier version knew fewer settings, and its files lack those that it did not know."""
    grid = plan_grid(file, [read_axis("method.lr=0.02")], [1, 2], ["policy.quorum=1"])
    finished(grid, tmp_path, {("0.02",): (0.5, 0.6)})
    written = tmp_path / grid.trials[0].name / "experiment.toml"
    lines = written.read_text().splitlines()
    written.write_text("\n".join(line for line in lines if not line.startswith("attempts")) + "\n")
    assert len(written.read_text().splitlines()) == len(lines) - 1
    (trial,) = read_trials(grid, tmp_path, "validation").trials
    assert trial.is_whole and len(trial.group.runs) == 2


@pytest.mark.slow
@pytest.mark.broker
def test_a_sweep_over_methods_on_series_can_be_compared_and_reported(tmp_path, capsys):
    dice, y = np.random.default_rng(0), np.array(["idle", "walk"] * 40)
    x = dice.normal(0, 0.3, (80, 3, 16)) + np.where(y == "walk", 1.0, 0.0)[:, None, None] * np.sin(
        np.arange(16)
    )
    (tmp_path / "watch").mkdir()
    np.savez(tmp_path / "watch" / "data.npz", x=x.astype(np.float32), y=y)
    (tmp_path / "watch.toml").write_text(
        'name = "watch"\nrounds = 1\nclasses = 2\nmethod = { name = "fedproto" }\nnetwork = { name = "cnn1d" }\n'
        'data = { source = "arrays", root = "watch", shape = [3, 16], validation = 0.2 }\ndevices = { count = 2 }\n'
    )
    done = protofleet(
        "sweep", "watch.toml", "--grid", "method.name=fedavg,fedproto", cwd=tmp_path, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = [str(tmp_path / "runs" / f"watch-name-{name}-s1") for name in ("fedavg", "fedproto")]
    files = [tmp_path / "both.html", tmp_path / "both.tex"]
    assert main(["compare", *runs, "--html", str(files[0]), "--latex", str(files[1])]) == 0
    for name in ("watch-name-fedavg", "watch-name-fedproto"):
        assert name in files[0].read_text() and name in files[1].read_text()
    for run in runs:
        assert main(["report", run]) == 0 and (Path(run) / "report.html").stat().st_size > 10_000
    said = capsys.readouterr().out
    assert "images" not in done.stdout + said, "these are series"
