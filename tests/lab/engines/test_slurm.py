"""A job becomes one array job of Slurm, and the words of squeue become the states of its tasks."""

import os
import subprocess
import time
from dataclasses import replace

import pytest

from protofleet.lab.engines.engine import TASK, EngineAwayError, EngineJob, TaskState
from protofleet.lab.engines.slurm import Slurm, script_of
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.children import PARENT
from tests.lab.engines.told_slurm import ToldSlurm

AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"


@pytest.fixture
def told(tmp_path):
    return ToldSlurm(tmp_path / "told")


@pytest.fixture
def slurm(told):
    return Slurm(environment=told.environment)


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    return EngineJob("sweep", folder, 3, ("echo", f"{TASK}/3", "it's"), options={"partition": "gpu"})


def test_a_task_runs_the_setup_and_then_the_command_with_its_number(job, tmp_path):
    """The script is run as Slurm would run it."""
    script = tmp_path / "job.sh"
    script.write_text(script_of(EngineJob("s", job.folder, 3, job.command, setup=("echo first",))))
    ran = subprocess.run(
        ["sh", str(script)], env={**os.environ, "SLURM_ARRAY_TASK_ID": "2"}, capture_output=True, text=True
    )
    assert ran.stdout == "first\n2/3 it's\n"


def test_the_script_requests_an_array_with_a_warning_signal_and_requeue(job):
    lines = script_of(EngineJob("s", job.folder, 3, ("true",), at_once=2, options=job.options)).splitlines()
    wanted = {
        "#SBATCH --array=0-2%2", "#SBATCH --requeue", "#SBATCH --open-mode=append",
        "#SBATCH --signal=B:TERM@60", "#SBATCH --partition=gpu", f'#SBATCH --output="{job.folder}/%a.log"',
    }  # fmt: skip
    assert wanted <= set(lines)
    assert lines[-1] == "exec true"  # Slurm's warning reaches the program, not a shell before it.


def test_the_minutes_of_a_job_replace_the_option_time(job):
    options = {"time": "60", "partition": "gpu"}
    lines = script_of(replace(job, options=options, minutes=5)).splitlines()
    assert "#SBATCH --time=5" in lines and "#SBATCH --time=60" not in lines
    assert "#SBATCH --time=60" in script_of(replace(job, options=options)).splitlines()


@pytest.mark.parametrize(("restarts", "waits"), [("0", False), ("1", True)])
def test_a_requeued_task_waits_until_slurm_no_longer_lists_its_predecessor(told, job, restarts, waits):
    """Only with --trust-locks; otherwise the lock of the run refuses the second process."""
    script = job.folder / "job.sh"
    script.write_text(script_of(replace(job, command=("echo", "begun"), after_predecessor=True)))
    own = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "59", "SLURM_RESTART_COUNT": restarts}
    told.tell("squeue", "59_3\n" if waits else "")
    with subprocess.Popen(
        ["sh", str(script)], env={**told.environment, **own}, stdout=subprocess.PIPE, text=True
    ) as task:
        while waits and not told.calls:
            assert task.poll() is None
            time.sleep(0.01)
        told.tell("squeue", "")
        assert task.communicate(timeout=20)[0] == "begun\n"
    assert all(call == "squeue -h -t COMPLETING -j 59_3" for call in told.calls) and bool(told.calls) == waits


def test_each_script_has_its_own_comment(job):
    assert script_of(job) != script_of(job)


def test_the_id_of_a_job_is_the_first_word_that_sbatch_prints(told, slurm, job):
    told.tell("sbatch", "44;probe\n")
    assert slurm.submit(job) == "44"


def test_environment_variables_do_not_replace_options_of_the_script(told, job):
    told.tell("sbatch", "44\n")
    given = {"SBATCH_NO_REQUEUE": "1", "SBATCH_PARTITION": "cpu", "SBATCH_ACCOUNT": "phys", PARENT: "1"}
    Slurm(environment={**told.environment, **given}).submit(job)
    seen = told.seen_by("sbatch")
    assert not seen.keys() & {"SBATCH_NO_REQUEUE", "SBATCH_PARTITION", PARENT}
    assert seen["SBATCH_ACCOUNT"] == "phys"


def test_the_states_in_squeue_become_the_states_of_the_tasks(told, slurm):
    told.tell(
        "squeue",
        "4|PENDING||Resources\n0|RUNNING|n1|None\n1|COMPLETING|n2|None\n2|COMPLETED|n2|None\n"
        "3|PENDING||launch failed requeued held\n5|CANCELLED|n1|None\n7|PENDING||PartitionTimeLimit\n"
        "6|FAILED|n1|NonZeroExitCode\n",
    )
    assert slurm.states("44") == [
        TaskState(4, "waits", "", "Resources"),
        TaskState(0, "runs", "n1", "None"),
        TaskState(1, "runs", "n2", "None"),
        TaskState(3, "held", "", "launch failed requeued held"),
        TaskState(5, "cancelled", "n1", "None"),
        TaskState(7, "refused", "", "PartitionTimeLimit"),
    ]


def test_a_job_that_slurm_no_longer_lists_has_no_tasks(told, slurm):
    told.tell("squeue", error="slurm_load_jobs error: Invalid job id specified\n", code=1)
    assert slurm.states("44") == [] and slurm.has_forgotten("44")
    told.tell("squeue", "0|COMPLETED|n1|None\n")
    assert slurm.states("44") == [] and not slurm.has_forgotten("44")


def test_a_controller_that_does_not_answer_does_not_end_a_job(told, slurm):
    told.tell("squeue", error=AWAY, code=1)
    with pytest.raises(EngineAwayError, match="Unable to contact slurm controller"):
        slurm.states("44")


def test_a_job_without_a_stored_id_is_found_by_its_comment(told, slurm, job):
    assert slurm.find(job) == ""
    told.tell("sbatch", "44\n")
    slurm.submit(job)
    comment = next(
        line.rpartition("=")[2]
        for line in (job.folder / "job.sh").read_text().splitlines()
        if "comment" in line
    )
    told.tell("squeue", f"43|protofleet-0\n44|{comment}\n44|{comment}\n")
    assert slurm.find(job) == "44"


def test_the_error_without_sbatch_names_a_fix(tmp_path, job):
    with pytest.raises(SettingsError, match="there is no sbatch on PATH.*login node.*leave out --on"):
        Slurm(environment={"PATH": str(tmp_path)}).submit(job)


def test_the_preflight_fails_if_no_controller_answers(told, slurm, job):
    told.tell("scontrol", error="slurm_load_ctl_conf error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(
        SettingsError, match="no controller of Slurm answers: .*Unable to contact.*scontrol ping"
    ):
        slurm.preflight(job)


def test_a_slurm_conf_that_does_not_exist_is_refused_without_a_call_of_slurm(told, slurm, job, tmp_path):
    environment = {**slurm.environment, "SLURM_CONF": f"{tmp_path}/none.conf"}
    with pytest.raises(SettingsError, match="SLURM_CONF is .*/none.conf, but there is no such file"):
        Slurm(environment=environment).preflight(job)
    assert told.calls == []


@pytest.mark.parametrize(
    "words",
    ["Invalid partition name specified", "Invalid account or account/partition combination specified"],
)
def test_the_error_for_a_job_that_slurm_refuses_has_the_message_of_slurm(told, slurm, job, words):
    told.tell("sbatch", error=f"sbatch: error: Batch job submission failed: {words}\n", code=1)
    with pytest.raises(SettingsError, match=f"Slurm refuses the job: .*{words}; correct it with --slurm"):
        slurm.submit(job)


def test_a_refusal_by_a_partition_names_the_command_that_lists_its_limits(slurm):
    assert "PartitionConfig (`scontrol show partition` lists" in slurm.refusal("PartitionConfig")
    assert "scontrol" not in slurm.refusal("invalid partition specified: gpu")


def test_more_tasks_than_an_array_may_have_are_refused_by_the_preflight(slurm, job):
    slurm.preflight(EngineJob("s", job.folder, 1000, ("true",)))
    with pytest.raises(
        SettingsError, match=r"1001 tasks are too many.*at most 1000 \(MaxArraySize\).*with --pack"
    ):
        slurm.preflight(EngineJob("s", job.folder, 1001, ("true",)))


def test_a_cancelled_job_can_be_killed_at_once(told, slurm):
    """After a plain scancel, Slurm would refuse SIGKILL until KillWait is over."""
    slurm.cancel("44")
    assert told.calls == ["scancel --state=PENDING 44", "scancel --signal=TERM --full 44"]
    slurm.cancel("44", kill=True)
    assert told.calls[2:] == ["scancel --signal=KILL --full 44", "scancel 44"]


def test_cancel_accepts_a_job_that_has_ended_but_fails_without_a_controller(told, slurm):
    told.tell(
        "scancel", error="scancel: error: Kill job error on job id 44: Invalid job id specified\n", code=1
    )
    slurm.cancel("44")
    told.tell("scancel", error=AWAY, code=1)
    with pytest.raises(EngineAwayError, match="Unable to contact"):
        slurm.cancel("44")
