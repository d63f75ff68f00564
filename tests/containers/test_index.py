"""Day 0 with boards without any software: each host fetches its software from an index, by the locks' hashes."""

import json

import pytest

from protofleet.runtime.locks.lockfile import LOCKS_FOLDER, normalized_name, read_lock
from tests.containers.desk import Desk, commands_of
from tests.containers.devices import bench_on
from tests.containers.pip_settings import mounted_pip_settings

DAY_0 = [line for section in commands_of("day-0.md").values() for line in section]
PYTHON = "/opt/{role}/current/bin/python"
INSTALLED = """import json, torch
from importlib.metadata import distributions
print(json.dumps([torch.__file__, [(one.name, one.version) for one in distributions()]]))"""
pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def desk(engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    with bench_on(engine, tmp_path_factory.mktemp("bench")) as bench:
        made = Desk(folder, bench, dependencies="index")
        made.pip = mounted_pip_settings(folder)
        hub = {"image": bench.with_mosquitto()}
        for address, more in (("10.0.0.10", hub), ("10.0.0.11", {}), ("10.0.0.12", {})):
            made.hosts[address] = bench.start(*made.pip, known=False, from_vendor=False, **more).booted()
        if problem := index_problem(made.hub):
            pytest.skip(problem)
        yield made


def index_problem(host):
    """Return why a host cannot fetch a torch for CPUs, or an empty text.

    Without it each host would fetch 5.4 GB of CUDA's.
    """
    (torch,) = read_lock((LOCKS_FOLDER / "cpu.txt").read_text())
    wanted = f"{torch.name}=={torch.version}"
    host.sh("python3 -m venv /tmp/asks")
    fetch = f"/tmp/asks/bin/pip download -q --no-deps --only-binary=:all: -d /tmp/asks {wanted} 2>&1"
    *told, fetched = host.sh(f"{fetch} && echo yes || echo no").splitlines()
    host.sh("rm -r /tmp/asks")
    return "" if fetched == "yes" else f"no board could fetch {wanted} here: {told[-1]}"


def test_bare_hosts_install_from_the_index_and_complete_the_first_round(desk):
    said = [desk.say(line) for line in DAY_0]
    assert "4 hosts: 4 changed, 0 failed" in said[3]
    assert "answers" in said[4] and "board-2" in said[4]
    desk.wait(lambda: [row for row in desk.rounds() if len(row["participants"]) == 2])


def test_each_host_has_only_the_packages_and_versions_of_the_locks(desk):
    locked = {
        (one.name, one.version)
        for name in ("cpu", "torch", "device", "data")
        for one in read_lock((LOCKS_FOLDER / f"{name}.txt").read_text())
    }
    for address, role in (
        ("10.0.0.10", "protofleet-coordinator"),
        ("10.0.0.11", "protofleet"),
        ("10.0.0.12", "protofleet"),
    ):
        torch, installed = json.loads(desk.hosts[address].do(PYTHON.format(role=role), "-c", INSTALLED))
        assert torch.startswith(f"/opt/{role}/"), "torch of the system is not used"
        others = {name for name, version in installed if (normalized_name(name), version) not in locked}
        assert others == {"protofleet"} and len(installed) > 30, others


def test_a_second_deployment_fetches_nothing(desk):
    said = desk.say("make deploy HOSTS=fleet/fleet.toml")
    assert "4 hosts: 0 changed, 0 failed" in said and said.count("nothing to do") == 4
