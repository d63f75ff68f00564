"""A fleet of an earlier release is upgraded, rolled back and deployed by it again, over real SSH and systemd."""

import os
import subprocess
import sys
import time

import pytest

from tests.containers.devices import bench_on
from tests.containers.rig import ROOT, Rig

# The last commit whose program on a host verified signatures itself, in a form of this project.
EARLIER = "affa518a"
ETC = "/etc/protofleet"
# Python runs it at its start, so that our packages come from that tree and not from this checkout.
SITE = """
import sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top, _, package = name.partition(".")
        return PathFinder.find_spec(name, [{tree!r}]) if top == "protofleet" and "." not in package else None

sys.meta_path.insert(0, Finder)
"""
pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]


class TwoDesks(Rig):
    """A rig whose commands come from this checkout or from another tree."""

    tree = ROOT

    def environment(self):
        path = ROOT if self.tree == ROOT else self.tree / "site"
        return {**os.environ, "PYTHONPATH": str(path), "PYTHONUNBUFFERED": "1"}

    def deploy_from(self, tree, step, *words, check=True):
        self.tree, began = tree, time.monotonic()
        try:
            done = self.deploy(step, *words, check=check)
            return done.stdout + done.stderr
        finally:
            self.tree = ROOT
            sys.__stderr__.write(f"\n{time.monotonic() - began:6.1f} s  {step} from {tree}\n")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    tree, archive = tmp_path_factory.mktemp("earlier"), tmp_path_factory.mktemp("archive") / "tree.tar"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "-o", str(archive), EARLIER], capture_output=True
    )
    if done.returncode:
        pytest.skip(f"commit {EARLIER} is not in this checkout: {done.stderr.decode().strip()}")
    subprocess.run(["tar", "-C", str(tree), "-xf", str(archive)], check=True)
    (tree / "site").mkdir()
    (tree / "site/sitecustomize.py").write_text(SITE.format(tree=str(tree)))
    return tree


@pytest.fixture
def fleet(engine, tmp_path, tmp_path_factory, earlier):
    """Yield a fleet whose root the earlier release has made and whose board it has deployed."""
    with bench_on(engine, tmp_path_factory.mktemp("bench")) as bench:
        board = bench.start().booted()
        TwoDesks.tree = earlier
        made = TwoDesks(tmp_path, bench, {"board-0": board})
        made.tree = TwoDesks.tree = ROOT
        try:
            made.start_broker()
            made.start_coordinator(rounds=10_000)
            assert "1 changed, 0 failed" in made.deploy_from(earlier, "apply", "--yes")
            assert not (tmp_path / "root/allowed_signers").exists()
            yield made
        finally:
            made.close()


def test_a_board_is_upgraded_rolled_back_and_deployed_by_the_earlier_release(fleet, earlier):
    board = fleet.devices["board-0"]
    first = board.sh("readlink /opt/protofleet/current")
    assert board.sh(f"ls {ETC}/allowed_signers", check=False) == ""

    said = fleet.deploy_from(ROOT, "plan")
    assert [line.split()[1].rstrip(":") for line in said.splitlines()[:3]] == ["prepare", "ship", "build"], (
        said
    )
    assert "1 changed, 0 failed" in fleet.deploy_from(ROOT, "apply")
    second = board.sh("readlink /opt/protofleet/current")
    assert second != first and fleet.federation in board.sh(f"cat {ETC}/allowed_signers")
    release = second.rpartition("/")[2]
    board.sh(
        f"cd /opt/protofleet/wheels/{release} && ssh-keygen -Y verify -f {ETC}/allowed_signers -I {fleet.federation}"
        " -n protofleet-manifest -s manifest.sig <manifest && sha256sum --check --strict --quiet manifest"
    )
    assert "nothing to do" in fleet.deploy_from(ROOT, "apply")

    assert f"rolled back to release {first.rpartition('/')[2]}" in fleet.deploy_from(
        ROOT, "rollback", "board-0"
    )
    assert board.sh("readlink /opt/protofleet/current") == first
    assert "1 changed, 0 failed" in fleet.deploy_from(ROOT, "apply", "--force")

    assert "1 changed, 0 failed" in fleet.deploy_from(earlier, "apply")
    assert board.sh("readlink /opt/protofleet/current") == first

    board.sh("mv /usr/bin/ssh-keygen /usr/bin/kept")
    words = "ssh-keygen: ssh-keygen is not installed; apt-get install openssh-client (8.2 or later)"
    assert words in fleet.deploy_from(ROOT, "plan", check=False)
