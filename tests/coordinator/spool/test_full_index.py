"""A run's folder on a nearly full disk opens, or the error reports that the disk is full, for any free space."""

import subprocess
import sys

import pytest

from tests.hostile.small_disk import small_disk

PROGRAM = """
import os, shutil, sys
from pathlib import Path
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.user_error import FAILED
from protofleet.runtime.command.exit_codes import exit_code, message

disk, killed = Path(sys.argv[1]), Path(sys.argv[2])
filler, run = disk / "filler", disk / "run"


def leave_free(pages):
    with filler.open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
    os.truncate(filler, filler.stat().st_size - pages * 4096)


for pages in range(50):
    filler.unlink(missing_ok=True)
    shutil.rmtree(run, ignore_errors=True)
    if killed.exists():
        shutil.copytree(killed, run)
    leave_free(pages)
    try:
        spool = Spool(run)
        spool.start_run("run", "settings", 7)
        spool.close()
    except Exception as error:
        assert exit_code(error) == FAILED, (pages, repr(error))
        assert message(error).startswith("the disk is full: "), (pages, repr(error))
        assert not [path for path in disk.rglob("*") if "damaged" in path.name], pages
        print("full")
    else:
        print("opened")
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["new", "killed"])
def test_the_index_opens_or_the_error_reports_a_full_disk_for_any_free_space(tmp_path, state, make_spool):
    killed = tmp_path / "killed"
    if state == "killed":
        make_spool(killed)
    with small_disk(tmp_path / "disk", 2 << 20) as through:
        done = subprocess.run(
            [*through, sys.executable, "-c", PROGRAM, str(tmp_path / "disk"), str(killed)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    said = done.stdout.split()
    assert {"full", "opened"} == set(said) and said[-1] == "opened"


@pytest.fixture
def make_spool():
    """Return a function that makes a run's folder as a kill leaves it.

    The folder has the log (-wal) of its index, but not the shared memory file (-shm).
    """

    def make(folder):
        begun = "; ".join((
            "import os, sys; from pathlib import Path",
            "from protofleet.coordinator.spool.spool import Spool",
            "spool = Spool(Path(sys.argv[1]))",
            "spool.start_run('run', 'settings', 5)",
            "os.kill(os.getpid(), 9)",
        ))  # fmt: skip
        assert subprocess.run([sys.executable, "-c", begun, str(folder)]).returncode == -9
        assert (folder / "spool.sqlite-wal").exists()
        (folder / "spool.sqlite-shm").unlink()

    return make
