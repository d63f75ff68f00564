"""Tests of runs in virtual time: their results, their costs, and the times in which devices are away."""

import filecmp
import json
import shutil

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.coordinator.observe.summary_file import read_summary, write_summary
from protofleet.edge_client.data.shard import Shards
from protofleet.lab.api.simulated import Federation
from protofleet.lab.local.batch import Batch
from protofleet.lab.report.comparison import read_groups
from protofleet.lab.report.run_page import final_table, write_report
from protofleet.lab.virtual.simulate import finished_before, named, simulate
from protofleet.lab.virtual.sweep import VirtualRuns
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.command.errors import RunError
from tests.lab.virtual.small import EXPERIMENT, PROFILES, experiment, profiles

FILES = (
    "rounds.jsonl",
    "rounds.copy.jsonl",
    "summary.json",
    "report.html",
    "experiment.toml",
    "profiles.toml",
)


def simulated(folder, *assignments, text=PROFILES, runs="runs"):
    """Run the small experiment in virtual time; return its folder, its rounds and its summary."""
    one = named(experiment(folder, *assignments))
    place = simulate(one, folder / runs, profiles(folder, text), say=lambda line: None).parent
    return place, read_rounds(place / "rounds.jsonl"), read_summary(place / "summary.json")


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Return the folder, the rounds and the summary of the small experiment. Tests do not change the folder."""
    return simulated(tmp_path_factory.mktemp("usual"))


def test_two_virtual_runs_write_the_same_bytes(tmp_path, usual):
    first, (second, *_) = usual[0], simulated(tmp_path)
    assert [name for name in FILES if not filecmp.cmp(first / name, second / name, shallow=False)] == []


def test_the_accuracy_is_equal_to_that_of_the_halves_without_a_network(tmp_path, usual):
    one, loader = experiment(tmp_path), Shards()
    plain = Federation(one.plan, {name: loader.load(data) for name, data in one.shards.items()}, False).run()
    _, lines, _ = usual
    found = [line["accuracy"]["global"]["optdigits"] for line in lines]
    mean = [sum(r.accuracy["global"].values()) / 3 for r in plain.rounds] + [
        sum(plain.final["global"].values()) / 3
    ]
    assert found == pytest.approx(mean)


def test_the_seconds_of_a_round_follow_from_boards_and_lines(tmp_path, usual):
    """A slower board or a slower line takes longer by the computed number of seconds."""
    _, lines, _ = usual
    _, slow_board, _ = simulated(tmp_path, text=PROFILES.replace("step_seconds = 0.1", "step_seconds = 1.1"))
    samples, measured = 40 - 4, 20 + 4  # A tenth of the samples is for validation, and each view is measured.
    for line, slow in zip(lines[:2], slow_board[:2], strict=True):
        assert slow["seconds"] - line["seconds"] == pytest.approx((samples + 2 * measured / 3) / 8, abs=0.01)
    _, slow_line, _ = simulated(tmp_path, text=PROFILES.replace("up = 8", "up = 0.8"))
    up = slow_line[1]["virtual"]["bytes_up"] / 3
    waits = 2 * 0.1  # Only the faster line waits for acknowledgements: 14 and 29 kB are less than 100 kB.
    longer = up * 8 * (1 / 0.8e6 - 1 / 8e6) - waits
    assert slow_line[1]["seconds"] - lines[1]["seconds"] == pytest.approx(longer, rel=0.1)


def test_the_costs_follow_from_the_profiles(usual):
    _, lines, summary = usual
    for line in lines:
        found = line["virtual"]
        assert found["money"] == pytest.approx((found["bytes_up"] + found["bytes_down"]) / 1e9 * 2, abs=1e-6)
    joules = summary["virtual"]["joules"]
    worked = 2 * 3 * (36 + 2 * 24 / 3) / 8 * 0.1 * 5 + 3 * 24 / 3 / 8 * 0.1 * 5
    radio = sum(line["virtual"]["bytes_up"] + line["virtual"]["bytes_down"] for line in lines) * 8 / 8e6 * 1
    assert joules == pytest.approx(worked + radio, rel=0.02)
    reported = sum(summary["energy"].values())
    assert 0.9 * joules < reported <= joules  # Updates do not report the joules of later work.


def test_money_needs_a_price_and_joules_need_watts(tmp_path):
    free = PROFILES.replace("price = 2\n", "").replace("watts = 5\n", "").replace("watts = 1\n", "")
    _, lines, summary = simulated(tmp_path, text=free)
    assert set(summary["virtual"]) == {"seconds", "bytes_up", "bytes_down"}
    assert summary["energy"] == {}
    _, _, priced = simulated(tmp_path, "budget.bytes=1GB", "budget.price_per_gb=3", text=free)
    size = priced["virtual"]["bytes_up"] + priced["virtual"]["bytes_down"]
    assert priced["virtual"]["money"] == pytest.approx(3 * size / 1e9, abs=1e-5)


def test_devices_that_are_off_for_a_time_continue_afterwards(tmp_path, usual):
    text = f'begins = "05:59"\n{PROFILES}[availability]\ndays = "06:10-06:00"\n'
    _, lines, summary = simulated(tmp_path, text=text.replace("step_seconds = 0.1", "step_seconds = 7"))
    assert [line["kind"] for line in lines] == ["training"] * 2 + ["evaluation"]
    assert summary["virtual"]["seconds"] > 660  # No device is there for ten minutes after the first minute.
    assert [line["accuracy"] for line in lines] == [line["accuracy"] for line in usual[1]]


def test_a_run_whose_devices_do_not_return_ends_with_one_line(tmp_path):
    (tmp_path / "trace.csv").write_text("device,from,until\na,0,3\n")
    text = f"{PROFILES}[availability]\ntrace = 'trace.csv'\n"
    with pytest.raises(
        RunError, match=r"round \d+ cannot end: 3 of 3 devices .* after 3\.0 s .*policy\.quorum is 3"
    ):
        simulated(tmp_path, "rounds=50", text=text.replace("step_seconds = 0.1", "step_seconds = 0.3"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("secagg={}", "secagg is set, but masked sums have no virtual time yet; leave out secagg"),
        (
            'dp={epsilon=5,delta=1e-3,clip=1,unit="device",rounds=2}',
            "dp is set, but its noise is drawn anew in each run, so two virtual runs would differ; leave out dp",
        ),
    ],
)
def test_masked_sums_and_noise_are_refused_in_one_line(tmp_path, capsys, change, words):
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    (tmp_path / "boards.toml").write_text(PROFILES)
    command = ["simulate", str(tmp_path / "small.toml"), "--profiles", str(tmp_path / "boards.toml")]
    assert main([*command, "--runs", str(tmp_path / "runs"), "--set", change]) == 2
    assert capsys.readouterr().err == f"protofleet: {words}\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("number", ["0", "-1", "1025", "2.5", "many"])
def test_a_wrong_number_of_workers_is_refused_with_its_limits(tmp_path, capsys, number):
    assert main(["simulate", "small.toml", "--profiles", "boards.toml", "--workers", number]) == 2
    assert (
        f"it is {number!r}, it must be a whole number, at least 1 and at most 1_024"
        in capsys.readouterr().err
    )


def test_a_finished_run_is_reused_only_for_the_same_settings_and_profiles(tmp_path):
    simulated(tmp_path)
    one, read = named(experiment(tmp_path)), profiles(tmp_path)
    assert finished_before(one, tmp_path / "runs", read)
    assert not finished_before(named(experiment(tmp_path, "rounds=3")), tmp_path / "runs", read)
    assert not finished_before(
        one, tmp_path / "runs", profiles(tmp_path, PROFILES.replace("up = 8", "up = 9"))
    )


def test_the_report_and_the_table_state_that_the_run_is_virtual(tmp_path, usual):
    folder = shutil.copytree(usual[0], tmp_path / "small-virtual")
    words = "computed by protofleet simulate from profiles; no board and no line was measured"
    assert words in final_table(folder)
    assert words in write_report(folder).read_text()
    assert json.loads((folder / "summary.json").read_text())["profiles"] == profiles(tmp_path).digest


def test_a_sweep_in_virtual_time_chooses_by_validation_and_shows_the_costs(tmp_path, capsys):
    path = tmp_path / "small.toml"
    path.write_text(EXPERIMENT)
    (tmp_path / "boards.toml").write_text(PROFILES)
    command = [
        "sweep",
        str(path),
        "--grid",
        "method.lr=0.001,0.1",
        "--profiles",
        str(tmp_path / "boards.toml"),
    ]
    command += ["--runs", str(tmp_path / "runs"), "--set", "rounds=1", "--set", "data.validation=0.2"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "Virtual runs" in first and "small-lr-0.1-virtual" in first
    assert {path.name for path in (tmp_path / "runs").iterdir() if path.name[0] != "."} == {
        "small-lr-0.001-virtual-s1", "small-lr-0.1-virtual-s1", "sweeps",
    }  # fmt: skip
    found = json.loads((tmp_path / "runs/sweeps/small-virtual/trials.json").read_text())
    assert found["chosen"] == max(found["trials"], key=lambda trial: trial["validation"])["settings"]
    assert "Virtual runs" in (tmp_path / "runs/sweeps/small-virtual/trials.md").read_text()
    assert main(command) == 0
    assert capsys.readouterr().out.count("this run has already ended: finished") == 2


def test_a_batch_of_virtual_runs_compares_the_profiles_of_a_finished_run(tmp_path, usual):
    one, runs = named(experiment(tmp_path)), usual[0].parent
    assert Batch(runs, runner=VirtualRuns(profiles(tmp_path))).is_finished(one)
    other = profiles(tmp_path, PROFILES.replace("up = 8", "up = 9"))
    assert not Batch(runs, runner=VirtualRuns(other)).is_finished(one)


def test_compare_marks_virtual_runs(usual, capsys):
    assert main(["compare", str(usual[0])]) == 0
    shown = capsys.readouterr().out
    assert "Virtual runs\n" in shown and "no board and no line was measured" in shown


def test_runs_with_different_profiles_are_different_experiments(tmp_path, usual):
    other = shutil.copytree(usual[0], tmp_path / "other")
    summary = read_summary(other / "summary.json")
    write_summary(other / "summary.json", {**summary, "profiles": "another digest"}, Disk(durable=False))
    assert len(read_groups([usual[0], other])) == 2


@pytest.mark.parametrize("more", [[], ["small.toml", "--validate", "runs/small"]])
def test_the_command_needs_either_an_experiment_or_a_run_to_validate(tmp_path, capsys, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    assert main(["simulate", *more, "--profiles", "boards.toml"]) == 2
    assert "give either an experiment or --validate RUN" in capsys.readouterr().err
