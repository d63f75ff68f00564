"""A run of real processes gives the same row again, stops when its policy stops it, and names its sources."""

import json

import pytest

from protofleet.lab.local.experiment import read_experiment
from protofleet.lab.report.comparison import read_groups
from protofleet.lab.report.comparison_tables import tables
from protofleet.lab.report.run_page import final_table
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.local.test_run import furnished, lines, protofleet


@pytest.mark.slow
def test_a_repeated_run_gives_the_same_row_and_names_its_sources(tmp_path):
    """The other bytes on the wire depend on timing, but accuracies and bytes of tensors do not."""
    place = furnished(tmp_path)
    for folder in ("one", "two"):
        done = protofleet("run", "small.toml", "--runs", folder, cwd=place)
        assert done.returncode == 0, done.stderr
    one, two = (read_groups([place / folder / "small"]) for folder in ("one", "two"))
    for first, second in zip(tables(one, None, 0.9)[:2], tables(two, None, 0.9)[:2], strict=True):
        assert first.rows == second.rows
    summaries = [
        json.loads((place / folder / "small" / "summary.json").read_text()) for folder in ("one", "two")
    ]
    assert summaries[0]["payload"] == summaries[1]["payload"]
    assert summaries[0]["experiment"] == summaries[1]["experiment"] != ""
    assert summaries[0]["versions"]["sources"] == summaries[1]["versions"]["sources"]
    done = protofleet("compare", "one/small", "--markdown", "tables.md", cwd=place)
    assert done.returncode == 0, done.stderr
    text = (place / "tables.md").read_text()
    assert "Where the figures come from" in text and summaries[0]["experiment"] in text
    assert summaries[0]["versions"]["sources"] in text


@pytest.mark.slow
def test_a_run_that_its_policy_stops_ends_like_a_finished_run(tmp_path):
    place = furnished(tmp_path)
    stop = ("--set", "rounds=60", "--set", "policy.stop.accuracy=0.4", "--set", "data.validation=0.2")
    done = protofleet("run", "small.toml", *stop, cwd=place)
    assert done.returncode == 0, done.stderr + done.stdout
    found = lines(place)
    assert len(found) < 61 and found[-1]["kind"] == "evaluation" and found[-1]["round"] == len(found)
    summary = json.loads((place / "runs" / "small" / "summary.json").read_text())
    assert summary["ended"] == "finished" and "policy.stop.accuracy is 0.4" in summary["stopped"]
    assert summary["rounds_done"] == len(found) - 1
    assert f"stopped after {len(found) - 1} of 60 rounds" in final_table(place / "runs" / "small")
    log = (place / "runs" / "small" / "logs" / "coordinator.log").read_text()
    assert "is the last one: validation accuracy is" in log


SMALL = 'name = "small"\nrounds = 2\n[method]\nname = "fedavg"\n[data]\nsource = "digits"\nsamples = 40\n'


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("[data]\nsource = \"digits\"\nvalidation = 0\n[policy.stop]\npatience = 3\n", "data.validation is 0"),
        ("[policy.stop]\n", "neither accuracy nor patience"),
        ("[policy]\ncohort = 2\nevaluate_every = 0\n[policy.stop]\npatience = 3\n", "evaluate_every to at least 1"),
        ("[policy.stop]\naccuracy = 1.5\n", "at most 1"),
    ],
)  # fmt: skip
def test_a_stop_rule_that_can_never_apply_is_refused_with_a_fix(tmp_path, policy, words):
    text = SMALL if policy.startswith("[policy") else SMALL.partition("[data]")[0]
    (tmp_path / "small.toml").write_text(text + policy)
    with pytest.raises(SettingsError, match=words):
        read_experiment(tmp_path / "small.toml", [])
