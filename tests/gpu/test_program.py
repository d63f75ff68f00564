"""The program of `make gpu` without a GPU, and its runs on a CPU."""

import json

import pytest
import torch

from tests.gpu import __main__ as program
from tests.gpu.pays import Row, row_of, write_table
from tests.gpu.runs import Run, Wanted, report, run_of


def test_a_machine_without_a_gpu_prints_one_line_and_exits_with_0(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main([]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"no GPU: torch {torch.__version__} sees no CUDA device here, so nothing was run"


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.parametrize("method", ["fcclplus", "fedavg"])
def test_two_runs_on_the_cpu_have_the_same_accuracy(method, tmp_path):
    pair = program.pair(method, Wanted(3, 1, "cpu"), 0.0, lambda: 7_000_000)
    assert pair.problems == [] and pair.there.accuracy == pair.cpu.accuracy
    run = pair.there
    assert (run.answers, run.out_of_memory) == (3, 0) and run.devices_per_second > 0
    assert report(run).startswith(method) and "7 MB" in report(run)
    program.keep(tmp_path / "gpu.json", {"gpu": "none"}, Wanted(3, 1, "cpu"), [pair])
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert kept["methods"][0]["there"]["accuracy"] == run.accuracy and kept["wanted"]["devices"] == 3


def run_with(accuracy):
    return Run("fedavg", 1.0, 3, 0, 0, accuracy, 10.0)


@pytest.mark.parametrize(
    ("there", "cpu", "problem"),
    [
        (0.8, 0.84, None),
        (0.8, 0.86, "accuracy 0.800, and 0.860 on the CPU, further apart than 0.05"),
        (None, 0.8, "it has no accuracy"),
    ],
)
def test_accuracies_that_differ_too_much_are_a_problem(there, cpu, problem):
    assert program.apart(run_with(there), run_with(cpu), 0.05) == ([problem] if problem else [])


@pytest.mark.slow
@pytest.mark.broker
def test_a_failed_run_reports_its_last_line_as_a_problem(tmp_path):
    run = run_of("no-method", Wanted(3, 1, "cpu"), tmp_path, lambda: 0)
    assert "no method 'no-method'" in run.problems[0]


@pytest.mark.slow
@pytest.mark.broker
def test_a_round_is_timed_on_the_wanted_processor_in_a_loop_and_on_the_cpu(tmp_path):
    row = row_of("mlp", Wanted(3, 1, "cpu"), tmp_path / "mlp")
    assert (row.network, row.devices, row.problems) == ("mlp", 3, [])
    assert min(row.there, row.loop, row.cpu) > 0


def test_the_table_has_the_times_and_the_speedups_of_a_gpu(tmp_path):
    rows = [Row("mlp", 24, 1.0, 0.5, 0.4), Row("resnet10", 24, 3.4, 2.0, None, ["it ended"])]
    shown = write_table(rows, tmp_path / "gpu.json")
    lines = (tmp_path / "gpu.md").read_text().splitlines()
    assert lines[2:] == [
        "| mlp | 24 | 1.00 s | 0.50 s | 0.40 s | 2.00 | 2.50 |",
        "| resnet10 | 24 | 3.40 s | 2.00 s |  | 1.70 |  |",
    ]
    assert lines[2] in shown
