"""Programs can call `protofleet.run` from every place that code runs in, for whole runs in real processes."""

import json
import math
import os
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import protofleet
from protofleet.coordinator.observe.rounds_file import read_rounds
from tests.lab.api.scripts import ENVIRONMENT, said, started
from tests.lab.local.test_resume import descendants, name_of
from tests.lab.local.test_run import furnished, wait_for_rounds
from tests.lab.local.test_run import protofleet as command
from tests.support.held_run import HeldRun

# The script has no `if __name__ == "__main__"`, but a running event loop, a thread, and two runs in one process.
EVERYWHERE = """
    import asyncio, json, signal, threading
    import protofleet

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)
    before = [signal.getsignal(number) for number in NUMBERS]
    rounds, results = [], []

    async def cell():
        results.append(protofleet.run("small.toml", progress=rounds.append))

    asyncio.run(cell())
    changed = {"base": "small.toml", "name": "other", "method": {"name": "fedprox"}}
    thread = threading.Thread(target=lambda: results.append(protofleet.run(changed, runs="there", seed=7)))
    thread.start()
    thread.join()
    assert [signal.getsignal(number) for number in NUMBERS] == before
    print(json.dumps({"rounds": [one["round"] for one in rounds], "folders": [str(one.folder) for one in results]}))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Run the script EVERYWHERE and return its folder, with the runs runs/small and there/other-s7."""
    folder = furnished(tmp_path_factory.mktemp("python"))
    (folder / "said.json").write_text(said(folder, EVERYWHERE, ENVIRONMENT))
    return folder


@pytest.mark.slow
def test_runs_in_an_event_loop_and_in_a_thread_keep_the_signal_handlers_of_the_script(place):
    words = json.loads((place / "said.json").read_text())
    assert words["folders"] == [str(place / "runs" / "small"), str(place / "there" / "other-s7")]
    assert words["rounds"] == [1, 2, 3]


@pytest.mark.slow
def test_a_result_has_the_numbers_from_the_files_of_the_run(place):
    result = protofleet.Result(place / "runs" / "small")
    summary = json.loads((result.folder / "summary.json").read_text())
    lines = read_rounds(result.folder / "rounds.jsonl")
    assert (result.name, result.method, result.seed, result.view) == ("small", "fedavg", 0, "global")
    assert math.isclose(result.accuracy, summary["accuracy"]["final"]["mean"])
    assert {**result.by_domain, "mean": result.accuracy} == summary["accuracy"]["final"]
    assert result.rounds == lines and result.report.exists()
    assert result.bytes.up == sum(summary["payload"]["up"].values())
    assert result.bytes.tensors == sum(sum(kinds.values()) for kinds in summary["payload"].values())
    assert result.bytes.wire == sum(sum(kinds.values()) for kinds in summary["wire"].values())
    assert [point.rounds for point in result.points] == [0, 1, 2]
    assert result.points[0].bytes == 0 and result.points[-1].accuracy == result.accuracy
    spent = [sum(sum(kinds.values()) for kinds in line["payload"].values()) for line in lines]
    assert [point.bytes for point in result.points] == [0, spent[0], spent[0] + spent[1]]
    assert "small: fedavg, accuracy" in repr(result)


@pytest.mark.slow
def test_a_mapping_overrides_its_base_and_the_name_of_the_run_contains_the_seed(place):
    result = protofleet.Result(place / "there" / "other-s7")
    assert (result.name, result.method, result.seed) == ("other-s7", "fedprox", 7)


@pytest.mark.slow
def test_compare_returns_the_same_tables_as_the_command_compare(place):
    folders = [place / "runs" / "small", place / "there" / "other-s7"]
    found = protofleet.compare([protofleet.Result(folders[0]), folders[1]])
    printed = command(
        "compare", *folders, "--html", "page.html", "--markdown", "tables.md", "--latex",
        "tables.tex", "--csv", "runs.csv", cwd=place,
    )  # fmt: skip
    assert str(found) + "\n" == printed.stdout
    assert found.to_html() == (place / "page.html").read_text()
    assert found.to_latex() == (place / "tables.tex").read_text()
    assert found.to_csv() == (place / "runs.csv").read_text()
    assert found.to_markdown() == (place / "tables.md").read_text()
    assert [(row.name, row.method, row.seeds) for row in found.rows] == [
        ("small", "fedavg", (0,)), ("other", "fedprox", (7,)),
    ]  # fmt: skip
    small = protofleet.Result(folders[0])
    assert found.rows[0].accuracy == small.accuracy and found.rows[0].bytes == small.bytes
    assert found.to_html(place / "again.html") == (place / "again.html").read_text()


INTERRUPTED = """
    import protofleet

    forty = {"base": "small.toml", "rounds": 40}
    try:
        protofleet.run(forty)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    input()
    print(protofleet.run(forty).points[-1].rounds)
"""


@pytest.mark.slow
def test_an_interrupt_ends_all_processes_and_the_next_call_continues_the_run(tmp_path):
    place, held = furnished(tmp_path), HeldRun(tmp_path / "held", 10)
    script = started(place, INTERRUPTED, held)
    wait_for_rounds(place, 3)
    script.send_signal(signal.SIGINT)
    held.let_go()
    assert script.stdout.readline() == "interrupted\n"
    assert descendants(script.pid) == set()
    first = (place / "runs" / "small" / "rounds.jsonl").read_text()
    assert first.count("\n") < 40
    out, errors = script.communicate("\n", timeout=120)
    assert (out, errors, script.returncode) == ("40\n", "", 0)
    assert (place / "runs" / "small" / "rounds.jsonl").read_text().startswith(first)
    assert not (place / "runs" / "small.1").exists()


@pytest.mark.slow
def test_an_error_in_the_progress_function_ends_the_run_and_its_page_and_is_raised(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(furnished(tmp_path))
    printed = []

    class EnoughError(Exception):
        pass

    def enough(record):
        printed.append(capsys.readouterr())
        address, _, code = printed[0].err.strip().removeprefix("page ").partition("#c=")
        with urllib.request.urlopen(f"{address}now", timeout=10) as told:
            assert code and json.load(told)["runs"][0]["run"] == "small"
        raise EnoughError(record["round"])

    with pytest.raises(EnoughError, match="1"):
        protofleet.run("small.toml", progress=enough, page=True)
    assert printed[0].out == ""
    assert not [pid for pid in descendants(os.getpid()) if "protofleet" in name_of(pid)]


MISTAKES = {
    "unknown key": ({"method": {"tua": 1}}, "SettingsError", r"method.tua is not a setting"),
    "wrong type": ({"rounds": "many"}, "SettingsError", r'^rounds is "many", but must be a whole number$'),
    "unknown method": ({"method": {"name": "fedmagic"}}, "SettingsError", r"no method 'fedmagic'; did you"),
    "no tracker": ({}, "SettingsError", r"no tracker has the name 'mlfow'; did you mean mlflow"),
    "no base": ({"base": "none.toml"}, "SettingsError", r"base is 'none.toml', it must be the path"),
    "a seed that is none": ({}, "SettingsError", r"seed is"),
    "an empty folder": ({"data": {"root": Path("empty")}}, "RunError", r"empty"),
    "no broker": (
        {"broker": {"kind": "external", "address": {"port": 1}}}, "RunError", r"nothing listens there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_the_one_line_error_of_the_command(tmp_path, monkeypatch, mistake):
    monkeypatch.chdir(furnished(tmp_path))
    (tmp_path / "empty").mkdir()
    changes, error, words = MISTAKES[mistake]
    seed = "seven" if "seed" in mistake else None
    track = ["mlfow"] if "tracker" in mistake else []
    with pytest.raises(getattr(protofleet, error), match=words) as raised:
        protofleet.run({"base": "small.toml", **changes}, seed=seed, track=track)
    assert "\n" not in str(raised.value)


def test_arguments_that_are_not_an_experiment_or_a_run_are_refused():
    with pytest.raises(protofleet.SettingsError, match="the experiment is int, it must be the path"):
        protofleet.run(7)
    with pytest.raises(protofleet.SettingsError, match="there is no file none.toml"):
        protofleet.run("none.toml")
    with pytest.raises(protofleet.RunError, match="none does not exist"):
        protofleet.Result("none")
    with pytest.raises(protofleet.RunError, match="there are no runs to compare"):
        protofleet.compare([])
    with pytest.raises(protofleet.RunError, match="none does not exist"):
        protofleet.compare("none")


def test_a_mapping_may_contain_numpy_numbers_and_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(furnished(tmp_path))
    with pytest.raises(protofleet.SettingsError, match="^policy.quorum is 9, but there are 3 devices"):
        protofleet.run({
            "base": "small.toml", "rounds": np.int64(2), "method": {"name": "fedavg", "lr": np.float32(0.5)},
            "data": {"root": tmp_path / "data"}, "policy": {"quorum": np.int32(9)},
        })  # fmt: skip
