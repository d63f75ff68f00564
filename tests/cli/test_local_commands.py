"""Tests of commands to a coordinator on this machine: errors if it does not respond, and the end of `follow`."""

import threading
from functools import partial

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.observe.summary_file import write_summary
from protofleet.coordinator.queue.folder import queue_folder
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime import control_socket
from protofleet.runtime.control_socket import listening, send

SHOWN = {"verdict": "done", "words": "", "state": "running", "reason": "", "over": False, "commands": []}


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run whose coordinator has no queue."""
    folder = tmp_path / "runs" / "red"
    (folder / "coordinator").mkdir(parents=True)
    return folder


def end(run, **more):
    write_summary(run / "summary.json", {"ended": "finished", "stopped": "", **more}, Disk(durable=False))


def test_the_error_without_a_response_names_the_command_that_shows_the_effect(
    tmp_path, run, capsys, monkeypatch
):
    monkeypatch.setattr(control_socket, "send", partial(send, seconds=0.2))
    queue, gate = queue_folder(tmp_path / "queue"), threading.Event()
    queue.mkdir(parents=True)

    def frozen(user, request):
        gate.wait(10)
        return SHOWN

    try:
        with listening(queue, frozen), listening(run / "coordinator", frozen):
            assert main(["stop", str(tmp_path / "queue" / "blue")]) == 1
            look = f"`protofleet runs --log --service {tmp_path}/queue` shows it"
            assert f"not known whether the command has had an effect: {look}" in capsys.readouterr().err
            assert main(["stop", str(run)]) == 1
            assert f"an effect: `protofleet show {run}` shows it" in capsys.readouterr().err
            assert main(["show", str(run)]) == 1
            assert "(timed out); see its log" in capsys.readouterr().err
            gate.set()
    finally:
        gate.set()


def test_the_error_without_a_coordinator_states_a_late_start_or_the_end_of_the_run(run, capsys):
    assert main(["pause", str(run)]) == 1
    said = capsys.readouterr().err
    assert "answers on this machine; it may still be starting. Otherwise start it" in said
    assert "Errno" not in said and "()" not in said
    end(run, stopped="stopped by ann", stopped_by="operator")
    assert main(["pause", str(run)]) == 1
    assert (
        f"{run} is over (stopped: stopped by ann), and its coordinator has ended" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("summary", "code", "last"),
    [({}, 0, "red: finished"),
     ({"stopped": "stopped by ann", "stopped_by": "operator"}, 1, "red: stopped: stopped by ann"),
     ({"stopped": "the budget is spent", "stopped_by": "budget"}, 0, "red: finished: the budget is spent"),
     ({"ended": "diverged: the loss is NaN"}, 1, "red: failed: diverged: the loss is NaN")],
)  # fmt: skip
def test_follow_ends_with_the_run_of_a_coordinator_that_ends_with_its_run(run, capsys, summary, code, last):
    asked, codes = threading.Event(), []

    def shown(user, request):
        asked.set()
        return SHOWN | {"reason": "1 devices are present; a round needs 2"}

    shell = threading.Thread(target=lambda: codes.append(main(["follow", str(run)])))
    with listening(run / "coordinator", shown):
        shell.start()
        assert asked.wait(30)
        end(run, **summary)
    shell.join(30)
    lines = capsys.readouterr().out.splitlines()
    assert codes == [code] and lines[-1] == last
    assert lines[0] == "red: running: 1 devices are present; a round needs 2"


def test_a_response_in_preparation_is_sent_before_the_process_ends(run):
    began, found = threading.Event(), []

    def slow(user, request):
        began.set()
        threading.Event().wait(0.3)
        return SHOWN

    shell = threading.Thread(target=lambda: found.append(send(run / "coordinator", {"verb": "stop"})))
    with listening(run / "coordinator", slow):
        shell.start()
        assert began.wait(30)
        before = threading.active_count()
    assert threading.active_count() < before, "the thread of the response has ended"
    shell.join(30)
    assert found == [SHOWN]


@pytest.mark.parametrize(
    "line", [("pause", "runs/red"), ("show", "../red"), ("follow", "runs/red"), ("stop", "/runs/red")]
)
def test_the_path_of_a_run_is_refused_with_the_option_operator(tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "operator.toml").write_text('enrolled = "keys"\n')
    assert main([*line, "--operator", "operator.toml"]) == 2
    assert (
        "is a path, and with --operator a run is named by its name; write red, or" in capsys.readouterr().err
    )


def test_the_file_of_an_experiment_or_an_operator_is_refused_for_a_coordinator(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.toml").write_text(
        'name = "red"\nrounds = 1\nclasses = 3\nmethod = { name = "fedavg" }\n'
    )
    (tmp_path / "operator.toml").write_text('enrolled = "keys"\n')
    assert main(["coordinator", "exp.toml"]) == 2
    assert "exp.toml is an experiment; `protofleet submit exp.toml` gives it to a" in capsys.readouterr().err
    for folder in ("none", "keys/current"):
        (tmp_path / folder).mkdir(parents=True)
        assert main(["coordinator", "operator.toml"]) == 2
        assert "operator.toml is an operator's file; name it with --operator" in capsys.readouterr().err
