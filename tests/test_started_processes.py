"""The processes of a test end with it, also in other sessions and without their parent."""

import subprocess

import pytest

from tests.lab.local.test_resume import wait_until
from tests.support.started_processes import described, ended_at_last, processes_in


def test_a_process_in_another_session_without_its_parent_ends_with_the_test(tmp_path):
    with pytest.MonkeyPatch.context() as patch, ended_at_last(patch) as started:
        subprocess.run(["sh", "-c", "setsid sleep 600 & sleep 600 &"], cwd=tmp_path, check=True)
        assert wait_until(lambda: described(started.left()).count("sleep 600") == 2)
        assert processes_in(tmp_path) == started.left() != []
    assert started.left() == processes_in(tmp_path) == []


def test_processes_of_another_test_continue():
    with pytest.MonkeyPatch.context() as patch, ended_at_last(patch) as outer:
        subprocess.run(["sh", "-c", "sleep 600 &"], check=True)
        with pytest.MonkeyPatch.context() as inner, ended_at_last(inner) as started:
            subprocess.run(["sh", "-c", "sleep 600 &"], check=True)
        assert started.left() == [] and len(outer.left()) == 1
