"""The driver of Ray starts tasks on nodes, restarts lost tasks, and reports which tasks wait and which run."""

import subprocess
from dataclasses import dataclass, field

import pytest

from protofleet.lab.engines.engine import TASK
from protofleet.lab.engines.ray_driver import MOST_CRASHES, DriverJob, DriverTask, RayDriver

JOB = "1a"


@dataclass
class ToldCluster:
    """A cluster whose tasks end as a test has set."""

    outcomes: dict[int, str] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)  # The number of each task that was given, in order.
    cancelled: list[tuple[int, bool]] = field(default_factory=list)
    resources: dict[str, float] = field(default_factory=lambda: {"CPU": 4.0})

    def start(self, task):
        self.started.append(task.number)
        return len(self.started) - 1

    def ended(self, results):
        return {one: self.outcomes[one] for one in results if one in self.outcomes}

    def cancel(self, result, kill):
        self.cancelled.append((self.started[result], kill))

    def nodes(self):
        return [
            {"NodeID": f"id-{name}", "NodeName": name, "Alive": name != "n3", "Resources": self.resources}
            for name in ("n1", "n2", "n3")
        ]


@pytest.fixture
def cluster():
    return ToldCluster()


@pytest.fixture
def driver(cluster):
    return RayDriver(cluster, clock=lambda: 0.0)


def job(folder, tasks=3, **changes):
    given = {"command": ["echo", f"{TASK}/3", "it's"], "setup": [], "at_once": 0, "claims": {"num_cpus": 1.0}}
    return DriverJob(**{
        "folder": str(folder), "tasks": tasks, "log": f"{TASK}.log", "working_folder": "", **given, **changes
    })  # fmt: skip


def submit(driver, folder, **changes):
    driver.submit(JOB, job(folder, **changes))
    driver.pump()


def states(driver):
    return list(driver.states(JOB))


def on_node(folder, task, name):
    (folder / f"{task}.node").write_text(f"id-{name}")


def test_no_more_tasks_run_at_once_than_the_job_allows(driver, cluster, tmp_path):
    submit(driver, tmp_path, at_once=2)
    assert cluster.started == [0, 1]
    assert states(driver)[2] == (2, "waits", "", "at most 2 run at once")
    cluster.outcomes[0] = "done"
    driver.pump()
    assert cluster.started == [0, 1, 2] and [one[0] for one in states(driver)] == [1, 2]


def test_a_task_has_the_state_runs_when_it_has_named_its_node(driver, cluster, tmp_path):
    submit(driver, tmp_path, tasks=1)
    assert states(driver) == [(0, "waits", "", "for room on a node")]
    on_node(tmp_path, 0, "n2")
    assert states(driver) == [(0, "runs", "n2", "")]


def test_a_node_file_of_an_earlier_command_is_ignored_and_no_node_file_is_left(driver, cluster, tmp_path):
    on_node(tmp_path, 0, "n1")
    submit(driver, tmp_path, tasks=1)
    assert states(driver) == [(0, "waits", "", "for room on a node")]
    on_node(tmp_path, 0, "n2")
    cluster.outcomes[0] = "done"
    driver.pump()
    assert states(driver) == [] and not list(tmp_path.glob("*.node"))


def test_a_task_of_a_lost_node_starts_again_and_the_node_is_named(driver, cluster, tmp_path):
    submit(driver, tmp_path, tasks=1)
    on_node(tmp_path, 0, "n1")
    cluster.outcomes[0] = "lost"
    driver.pump()
    assert cluster.started == [0, 0] and driver.bad == {"n1": "dead"}
    assert states(driver) == [(0, "waits", "", "for room on a node")], "its earlier node does not count"


def test_a_task_ends_after_the_maximum_number_of_worker_crashes(driver, cluster, tmp_path):
    submit(driver, tmp_path, tasks=1)
    for start in range(MOST_CRASHES):
        assert states(driver)
        cluster.outcomes[start] = "crashed"
        driver.pump()
    assert cluster.started == [0] * MOST_CRASHES and states(driver) == []
    assert driver.bad == {}


def test_cancel_ends_waiting_tasks_at_once_and_running_tasks_when_ray_has_ended_them(
    driver, cluster, tmp_path
):
    submit(driver, tmp_path, tasks=2, at_once=1)
    driver.cancel(JOB, kill=False)
    driver.pump()
    assert cluster.cancelled == [(0, False)] and cluster.started == [0]
    assert [one[:2] for one in states(driver)] == [(0, "waits"), (1, "cancelled")]
    driver.cancel(JOB, kill=True)
    assert cluster.cancelled == [(0, False), (0, True)]
    cluster.outcomes[0] = "crashed"
    driver.pump()
    assert [one[1] for one in states(driver)] == ["cancelled", "cancelled"] and cluster.started == [0]


def test_a_waiting_task_names_the_claim_that_no_living_node_can_meet(driver, cluster, tmp_path):
    submit(driver, tmp_path, tasks=1, claims={"num_cpus": 1.0, "num_gpus": 1.0})
    assert states(driver)[0][3] == "num_gpus is 1, and the nodes that are there have at most 0"


def test_the_setup_runs_before_the_command_with_the_number_of_the_task(tmp_path):
    task = DriverTask(job(tmp_path, setup=["echo first", "export A=b"]), 2)
    ran = subprocess.run([*task.words], capture_output=True, text=True)
    assert ran.stdout == "first\n2/3 it's\n"
    assert DriverTask(job(tmp_path), 1).words == ["echo", "1/3", "it's"]
