"""A queue restored from an old backup continues with a device of this version and with one of version 1.0."""

import shutil

import pytest

from tests.hostile.device import honest
from tests.hostile.federation import Federation
from tests.hostile.test_run_queue import EXPERIMENT, Operator

pytestmark = [pytest.mark.slow, pytest.mark.broker]


def test_a_queue_restored_from_a_backup_three_rounds_old_continues_with_its_devices(tmp_path, capsys):
    with Federation(tmp_path, "one", "two") as f:
        operator, limit = Operator(f, capsys), [1]
        coordinator = f.service()
        new = f.device("one")
        old = f.raw("two", lambda task: honest(task) if task.round <= limit[0] else None)
        f.wait_until(f.answers, "the coordinator")
        assert operator.submit("demo", text=EXPERIMENT.replace("rounds = 2", "rounds = 7")) == 0
        runs = operator.runs

        def until_done(count):
            lines = runs / "demo" / "rounds.jsonl"
            f.wait_until(
                lambda: lines.exists() and len(lines.read_text().splitlines()) == count, f"{count} rounds"
            )

        until_done(1)
        coordinator.kill()
        shutil.copytree(runs, tmp_path / "backup", ignore=shutil.ignore_patterns("*.sock"))
        coordinator = f.service()
        limit[0] = 4
        until_done(4)
        coordinator.kill()
        shutil.rmtree(runs)
        shutil.copytree(tmp_path / "backup", runs)
        coordinator = f.service(options=("--restored",))
        f.wait_until(f.answers, "the coordinator")
        operator.wait_for(demo="paused")
        before = len(old.heard)
        assert operator.say("resume", "demo") == 1
        assert "--new-generation" in capsys.readouterr().out
        assert operator.say("resume", "demo", "--new-generation", "--keep-halves") == 0
        limit[0] = 99
        operator.wait_for(demo="finished")
        until_done(8)  # Seven rounds and the last evaluation.
        asked = [h for h in old.heard[before:] if h.kind == "task"]
        assert {h.header["run"] for h in asked} == {"demo.2"} and asked[0].header["round"] <= 2
        assert {h.header["run"] for h in old.heard if h.kind == "task"} == {"demo", "demo.2"}
        assert operator.say("show", "demo") == 0
        assert "this is generation 2" in capsys.readouterr().out
        assert "went on behind its devices" in (runs / "demo" / "report.html").read_text()
        assert "Traceback" not in f.log_of(coordinator) + f.log_of(new)
