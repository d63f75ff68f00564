"""Two processes never use one folder of a coordinator at the same time."""

import os
import subprocess
import sys

import pytest

from protofleet.coordinator.leading.lock import holder_of, sole_use
from protofleet.runtime.command.errors import OutrankedError

HOLD = """
import sys, fcntl, os
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print(flush=True)
input()
"""


@pytest.fixture
def holder(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        yield child
        child.kill()


def test_a_folder_of_another_process_is_refused_with_the_id_of_that_process(tmp_path, holder):
    assert holder_of(tmp_path) == holder.pid
    with (
        pytest.raises(
            OutrankedError, match=rf"another coordinator \(pid {holder.pid}\) uses {tmp_path}; end it"
        ),
        sole_use(tmp_path),
    ):
        pass


def test_a_folder_of_another_process_is_not_taken_over_and_the_error_gives_the_fix(tmp_path, holder):
    with (
        pytest.raises(
            OutrankedError,
            match=rf"another coordinator \(pid {holder.pid}\) uses {tmp_path}; stop it with SIGTERM or with its "
            "service manager, and start this one again: --take-over is for a coordinator of another host",
        ),
        sole_use(tmp_path, take_over=True),
    ):
        pass


def test_a_folder_is_free_when_its_process_has_died(tmp_path, holder):
    holder.kill()
    holder.wait()
    with sole_use(tmp_path):
        assert holder_of(tmp_path) == os.getpid()
    assert holder_of(tmp_path) == 0


def test_a_missing_folder_is_made(tmp_path):
    with sole_use(tmp_path / "new" / "folder"):
        assert (tmp_path / "new" / "folder").is_dir()
