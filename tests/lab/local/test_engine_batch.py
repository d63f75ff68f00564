"""A sweep on an engine: the folders of the runs show which runs have finished, the engine only which jobs run."""

import json
import shutil
from dataclasses import replace

import pytest

from protofleet.lab.engines.engine import TaskState
from protofleet.lab.engines.settings import EngineSettings
from protofleet.lab.local.engine_batch import EngineBatch
from protofleet.lab.local.engine_folder import EngineFolder, TaskFiles
from protofleet.lab.local.experiment import recorded
from protofleet.lab.local.grid import plan_grid, read_axis
from protofleet.lab.local.sole_use import sole_use
from protofleet.lab.local.sweep_file import Wish, engine_of, planned
from protofleet.protocol.settings.reader import SettingsError, read_toml
from protofleet.runtime.command.errors import RunError, StoppedError
from tests.lab.engines.told_engine import ToldEngine
from tests.lab.local.test_sweep import FILE, finish


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def trials(tmp_path):
    path = tmp_path / "base.toml"
    path.write_text(FILE)
    return plan_grid(path, [read_axis("method.lr=0.02,0.1")], [1, 2], []).trials


@pytest.fixture
def said():
    return []


@pytest.fixture
def batch(runs, said):
    def make(engine, **more):
        settings = EngineSettings(on="slurm", pack=more.pop("pack", 1))
        return EngineBatch(runs, "rates", engine, settings, say=said.append, poll_seconds=0.0, **more)

    return make


def names_of(job, task):
    return EngineFolder(job.folder.parent).tasks()[task]


def finishing(runs, trials, failing=()):
    """Return tasks that finish their trials, except those that fail."""
    known = {trial.name: trial for trial in trials}

    def perform(job, task):
        for name in names_of(job, task):
            if name in failing:
                TaskFiles(job.folder / "list", task).write_failures({name: "no data"})
            else:
                finish(runs, known[name], 0.5, 0.5)

    return perform


def a_round(runs, name):
    (runs / name).mkdir(parents=True, exist_ok=True)
    with (runs / name / "rounds.jsonl").open("a") as file:
        file.write("{}\n")


def test_all_trials_run_in_one_job_and_their_progress_is_read_from_the_folders(runs, trials, batch, said):
    engine = ToldEngine(finishing(runs, trials))
    assert batch(engine).run_all(trials) == 0
    assert [job.tasks for job in engine.jobs.values()] == [4]
    assert said[-2:] == ["trials: 0 wait, 0 run, 4 have finished, 0 have failed", "4 of 4 runs are finished"]
    assert "trials: 2 wait, 1 run, 1 have finished, 0 have failed" in said


def test_the_file_of_a_trial_is_equal_to_the_experiment_file_of_its_run(runs, trials, batch):
    batch(ToldEngine(finishing(runs, trials))).run_all(trials)
    for trial in trials:
        assert read_toml(runs / "sweeps" / "rates" / "trials" / f"{trial.name}.toml") == recorded(trial)


def test_a_task_has_as_many_trials_as_the_setting_pack(runs, trials, batch):
    engine = ToldEngine(finishing(runs, trials))
    batch(engine, pack=3).run_all(trials)
    assert [len(names) for names in EngineFolder(runs / "sweeps" / "rates").tasks()] == [3, 1]
    assert engine.jobs["1"].tasks == 2


def test_a_finished_trial_is_not_submitted(runs, trials, batch):
    finish(runs, trials[0], 0.5, 0.5)
    engine = ToldEngine(finishing(runs, trials))
    assert batch(engine).run_all(trials) == 0
    assert engine.jobs["1"].tasks == 3
    assert batch(engine).run_all(trials) == 0 and len(engine.jobs) == 1


def test_a_failed_trial_does_not_stop_the_others(runs, trials, batch, said):
    engine = ToldEngine(finishing(runs, trials, [trials[1].name]))
    assert batch(engine).run_all(trials) == 1
    assert f"failed: {trials[1].name}: no data" in said and said[-1] == "3 of 4 runs are finished"
    assert len(engine.jobs) == 1


def test_a_diverged_trial_is_reported_as_failed_with_a_fix(runs, trials, batch, said):
    finish(runs, trials[0], 0.5, 0.5, ended="diverged")
    assert batch(ToldEngine(finishing(runs, trials))).run_all(trials) == 1
    assert f"failed: {trials[0].name}: diverged; --fresh runs it again" in said


def test_a_trial_at_its_time_limit_is_submitted_again_while_it_completes_rounds(runs, trials, batch, said):
    starts = []

    def perform(job, task):
        (name,) = names_of(job, task)
        starts.append(name)
        if name == trials[0].name and starts.count(name) < 3:
            a_round(runs, name)
        else:
            finishing(runs, trials)(job, task)

    assert batch(ToldEngine(perform)).run_all(trials) == 0
    assert starts.count(trials[0].name) == 3
    assert "job 1 has ended before 1 of its trials; they are submitted again" in said


def test_a_trial_that_completes_no_round_is_not_submitted_again(runs, trials, batch, said):
    engine = ToldEngine()
    assert batch(engine).run_all(trials[:1]) == 1
    assert len(engine.jobs) == 1
    assert "its task ended before the trial had ended a round" in said[-2]


def test_a_job_that_the_engine_no_longer_lists_is_submitted_again_only_once(runs, trials, batch, said):
    engine = ToldEngine(forgetful=True)
    assert batch(engine).run_all(trials) == 1
    assert len(engine.jobs) == 2 and said.count("slurm has forgotten job 1") == 1


def test_the_reason_of_an_ended_task_is_the_last_line_of_its_log(runs, trials, batch, said):
    def perform(job, task):
        job.log_of(task).write_text("slurmstepd: error: Exceeded job memory limit\n")

    batch(ToldEngine(perform)).run_all(trials[:1])
    assert "Exceeded job memory limit" in said[-2] and "--slurm time=" in said[-2]


def test_a_later_command_waits_for_the_job_of_an_earlier_command(runs, trials, batch, said):
    engine = ToldEngine(finishing(runs, trials))
    assert batch(engine).run_all(trials, detach=True) == 0
    assert batch(engine).run_all(trials) == 0
    assert "job 1 already runs these trials" in said and len(engine.jobs) == 1


def test_a_job_without_a_stored_id_is_found_in_the_queue(runs, trials, batch, said):
    engine = ToldEngine(finishing(runs, trials))
    batch(engine).run_all(trials, detach=True)
    (runs / "sweeps" / "rates" / "engine" / "job").unlink()
    assert batch(engine).run_all(trials) == 0
    assert "job 1 already runs these trials" in said and len(engine.jobs) == 1


def test_trials_that_a_running_job_lacks_are_submitted_after_it(runs, trials, batch, said):
    engine = ToldEngine(finishing(runs, trials))
    batch(engine).run_all(trials[:2], detach=True)
    assert not any("the job does not have" in line for line in said)
    batch(engine).run_all(trials, detach=True)
    assert "the job does not have 2 of the trials" in said[-2] and len(engine.jobs) == 1
    assert batch(engine).run_all(trials) == 0
    assert [job.tasks for job in engine.jobs.values()] == [2, 2]


def test_detach_reports_that_the_job_in_the_queue_has_other_settings(runs, trials, batch, said):
    engine = ToldEngine(finishing(runs, trials))
    batch(engine).run_all(trials, detach=True)
    batch(engine).run_all([replace(trials[0], rounds=77), *trials[1:]], detach=True)
    assert f"the job does not have 1 of the trials, for example {trials[0].name}" in said[-2]


def test_an_interrupt_cancels_the_job_and_waits_until_no_task_is_left(runs, trials, batch):
    engine = ToldEngine()

    def interrupted(job, task):
        engine.perform = finishing(runs, trials)
        raise KeyboardInterrupt

    engine.perform = interrupted
    with pytest.raises(
        StoppedError, match="stopped; job 1 is cancelled, 1 of 4 runs are finished, and the same"
    ):
        batch(engine).run_all(trials)
    assert engine.left == {"1": []}
    assert batch(engine).run_all(trials) == 0


def test_a_cancelled_job_is_not_submitted_again(runs, trials, batch):
    engine = ToldEngine()
    engine.perform = lambda job, task: engine.cancel("1")
    with pytest.raises(StoppedError, match="job 1 was cancelled, by scancel.*0 of 4 runs are finished"):
        batch(engine).run_all(trials)
    assert len(engine.jobs) == 1


def test_a_second_command_for_the_same_sweep_is_refused(runs, trials, batch):
    folder = runs / "sweeps" / "rates" / "engine"
    with sole_use(folder), pytest.raises(SettingsError, match="another command is at this sweep, process"):
        batch(ToldEngine()).run_all(trials)


def test_a_trial_that_another_process_runs_is_awaited_and_does_not_fail(runs, trials, batch, said):
    """The lock is released at the second check of the queue."""
    holding = sole_use(runs / trials[0].name)
    holding.__enter__()
    engine = ToldEngine()

    def tell(text):
        said.append(text)
        if "is in use elsewhere" in text:
            holding.__exit__(None, None, None)
            engine.perform = finishing(runs, trials)

    one = batch(engine)
    one.say = tell
    assert one.run_all(trials[:1]) == 0
    assert len(engine.jobs) == 2


def test_a_lost_node_is_named_with_the_number_of_its_trials(runs, trials, batch, said):
    run = [TaskState(0, "runs", "n3"), TaskState(1, "runs", "n3"), TaskState(2, "runs", "n1")]
    back = [TaskState(0, "waits"), TaskState(1, "waits"), TaskState(2, "runs", "n1")]
    engine = ToldEngine(finishing(runs, trials), told=[run, back], bad={"n3": "down*"})
    assert batch(engine).run_all(trials) == 0
    assert "node n3 is lost (down*), its 2 trials wait for another" in said


def test_a_lost_node_is_named_even_if_its_trial_already_runs_on_another_node(runs, trials, batch, said):
    looks = [[TaskState(0, "runs", node), TaskState(1, "runs", "n1")] for node in ("n3", "n2")]
    engine = ToldEngine(finishing(runs, trials), told=looks, bad={"n3": "down*"})
    assert batch(engine).run_all(trials) == 0
    assert "node n3 is lost (down*), its 1 trial runs on another" in said
    assert sum("is lost" in line for line in said) == 1


def test_a_preempted_task_is_not_reported_as_a_lost_node(runs, trials, batch, said):
    engine = ToldEngine(finishing(runs, trials), told=[[TaskState(0, "runs", "n3")], [TaskState(0, "waits")]])
    assert batch(engine).run_all(trials) == 0
    assert "node n3 has given its place to other work, its 1 trial waits for another" in said


def test_a_held_task_is_reported_once_with_a_fix_and_drained_nodes_are_named(runs, trials, batch, said):
    held = [TaskState(3, "held", reason="launch failed requeued held")]
    engine = ToldEngine(finishing(runs, trials), told=[held, held], bad={"n2": "drained"})
    assert batch(engine).run_all(trials) == 0
    wanted = "job 1_3 is held by slurm (launch failed requeued held): scontrol release 1_3"
    assert said.count(wanted) == 1
    assert "nodes that take no tasks: n2 (drained)" in said


def test_a_job_that_can_never_start_is_reported_once(runs, trials, batch, said):
    never = [TaskState(i, "refused", reason="PartitionTimeLimit") for i in range(4)]
    engine = ToldEngine(finishing(runs, trials), told=[never, never])
    assert batch(engine).run_all(trials) == 0
    wanted = "job 1 waits for ever: Slurm refuses the job: PartitionTimeLimit; correct it, after --cancel"
    assert said.count(wanted) == 1


def test_a_controller_that_does_not_answer_is_asked_again_and_reported_once_a_minute(
    runs, trials, batch, said
):
    engine = ToldEngine(finishing(runs, trials))
    batch(engine).run_all(trials, detach=True)
    one = batch(engine)
    # The first check of the queue belongs to the start of the command.
    engine.told = [[TaskState(0, "runs", "n1")]]
    states, looks = engine.states, []

    def away_later(job_id):
        looks.append(job_id)
        engine.away = len(looks) in range(2, 7)
        return states(job_id)

    engine.states = away_later
    assert one.run_all(trials) == 0
    away = [text for text in said if "does not answer" in text]
    assert away == [
        "slurm does not answer: Unable to contact slurm controller; tasks go on, and it is asked again"
    ]


def test_a_sweep_with_a_job_on_another_cluster_is_refused(runs, trials, batch):
    batch(ToldEngine(finishing(runs, trials))).run_all(trials, detach=True)
    with pytest.raises(
        SettingsError, match="job 1 .*cluster 'probe', and this is slurm of the cluster 'other'"
    ):
        batch(ToldEngine(cluster="other")).run_all(trials)


def test_fresh_is_refused_while_a_job_runs(runs, trials, batch):
    engine = ToldEngine(finishing(runs, trials))
    batch(engine).run_all(trials, detach=True)
    with pytest.raises(SettingsError, match="--fresh runs all trials again, but job 1 runs them"):
        batch(engine, fresh=True).run_all(trials)


def test_fresh_keeps_the_earlier_runs_under_another_name(runs, trials, batch):
    finish(runs, trials[0], 0.5, 0.5)
    assert batch(ToldEngine(finishing(runs, trials)), fresh=True).run_all(trials) == 0
    assert (runs / f"{trials[0].name}.1" / "summary.json").exists()


def test_cancel_ends_the_job_of_an_earlier_command(runs, trials, batch, said):
    engine = ToldEngine()
    batch(engine).run_all(trials, detach=True)
    batch(engine).cancel()
    assert engine.left == {"1": []} and said[-1].startswith("job 1 is cancelled")
    batch(engine).cancel()
    assert said[-1] == "no job of rates is in the queue of slurm"


def test_a_file_contains_the_engine_the_cluster_and_the_id_of_the_job(runs, trials, batch):
    batch(ToldEngine()).run_all(trials, detach=True)
    record = json.loads((runs / "sweeps" / "rates" / "engine" / "job").read_text())
    assert (record["engine"], record["cluster"], record["job"]) == ("slurm", "probe", "1")


def test_no_trial_is_submitted_before_a_node_has_passed_the_check(runs, trials, batch):
    engine = ToldEngine(check=lambda job: job.log_of(0).write_text("python3: not found\n"))
    one = batch(engine, settle_seconds=0.0)
    with pytest.raises(SettingsError, match="the first task has ended without an answer: python3: not found"):
        one.run_all(trials)
    assert engine.jobs == {} and not (runs / "sweeps" / "rates" / "engine" / "list").exists()


def test_the_table_engine_is_not_part_of_the_settings_of_a_run(tmp_path):
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text(FILE)
    other.write_text(FILE + '[engine]\non = "slurm"\npack = 3\nslurm = { partition = "gpu" }\n')
    found = [plan_grid(path, [read_axis("method.lr=0.02")], [1], []).trials[0] for path in (one, other)]
    assert found[1].engine == EngineSettings(on="slurm", pack=3, slurm={"partition": "gpu"})
    assert recorded(found[0]) == recorded(found[1])


def test_the_engine_table_of_a_sweep_file_replaces_that_of_its_experiment(tmp_path):
    (tmp_path / "base.toml").write_text(FILE + "[engine]\npack = 3\n")
    path = tmp_path / "rates.toml"
    path.write_text('experiment = "base.toml"\n[grid]\n"method.lr" = [0.1]\n')
    assert engine_of(path, planned(path, Wish())[0]).pack == 3
    path.write_text(path.read_text() + "[engine]\npack = 5\n")
    assert engine_of(path, planned(path, Wish())[0]).pack == 5


def test_a_full_disk_ends_the_command_with_a_fix(runs, trials, batch, monkeypatch):
    """The task has completed a round, so without the check of the disk its trial would be submitted again."""
    engine = ToldEngine(lambda job, task: a_round(runs, trials[0].name))
    usage = shutil.disk_usage(runs.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(
        RunError, match="is full; 0 of 1 runs are finished; make room and run the same command again"
    ):
        batch(engine).run_all(trials[:1])
    assert len(engine.jobs) == 1
