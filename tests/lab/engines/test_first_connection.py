"""Before a run starts in tasks, a first task shows that the nodes reach the machine of the broker."""

import subprocess
from dataclasses import dataclass, field

import pytest

from protofleet.lab.engines.engine import EngineJob, TaskState
from protofleet.lab.engines.first_connection import FirstTask
from protofleet.protocol.settings.reader import SettingsError

HERE = "127.0.0.2"


@dataclass
class NodeHere:
    """An engine with one node on this machine. `changed` replaces words of each command."""

    changed: dict[str, str] = field(default_factory=dict)
    name: str = "node here"
    ends_with_command: bool = False
    cluster: str = ""
    ran: list[str] = field(default_factory=list)
    cancelled: bool = False

    def preflight(self, job):
        pass

    def find(self, job):
        return ""

    def submit(self, job):
        self.ran = [self.changed.get(word, word) for word in job.command]
        self.process = subprocess.Popen(self.ran)
        return "1"

    def states(self, job_id):
        return [TaskState(0, "runs", "n1")] if self.process.poll() is None else []

    def cancel(self, job_id, kill=False):
        self.cancelled = True

    def bad_nodes(self):
        return {}

    def hold_words(self, job_id, task):
        return ""


def check(tmp_path, host=HERE, **changed):
    engine = NodeHere(changed)
    job = EngineJob("first", tmp_path / "first", 1, ())
    FirstTask(engine, job, host, lambda line: None).check()
    return engine


def test_the_check_succeeds_if_the_node_connects_and_leaves_no_folder(tmp_path):
    engine = check(tmp_path)
    assert HERE in engine.ran and not (tmp_path / "first").exists()
    assert engine.process.wait(60) == 0


def test_a_host_that_the_node_cannot_reach_is_refused_with_a_fix(tmp_path):
    with pytest.raises(
        SettingsError,
        match=r"--host is 127\.0\.0\.2, but the node .* cannot reach .* \(Connection refused\); name an",
    ):
        check(tmp_path, **{HERE: "127.0.0.9"})


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_a_host_that_is_not_this_machine_is_refused_before_a_task_is_submitted(tmp_path, host):
    with pytest.raises(SettingsError, match=f"--host is {host}, but this machine cannot listen there"):
        check(tmp_path, host)


def test_a_first_task_that_ends_without_a_result_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match=r"has ended without a result .* a disk that the nodes share"):
        check(tmp_path, **{"-I": "--no-such-option"})
