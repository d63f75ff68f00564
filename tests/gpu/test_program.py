"""`make gpu` where there is no GPU, and its runs on a CPU."""

import pytest
import torch

from tests.gpu import __main__ as program
from tests.gpu.runs import Wanted, report, run_of


def test_a_machine_without_a_gpu_says_so_in_one_line_and_has_failed_in_nothing(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main([]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"no GPU: torch {torch.__version__} sees no CUDA device here, so nothing was run"


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.parametrize("method", ["fcclplus", "fedavg", "fedgen", "fml"])
def test_a_run_of_a_method_is_one_of_which_all_devices_answer(method, tmp_path):
    run = run_of(method, Wanted(3, 1, "cpu"), tmp_path, lambda: 7_000_000)
    assert (run.answers, run.problems, run.out_of_memory) == (3, [], 0)
    assert report(run).startswith(method) and "7 MB" in report(run)


@pytest.mark.slow
@pytest.mark.broker
def test_a_run_that_fails_is_named_with_its_last_line(tmp_path):
    run = run_of("no-method", Wanted(3, 1, "cpu"), tmp_path, lambda: 0)
    assert "no method 'no-method'" in run.problems[0]
