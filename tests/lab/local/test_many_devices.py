"""`protofleet fleet` makes each device a process, restarts one that ends in error, and ends all at one signal."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protofleet.cli.main import main
from protofleet.lab.local.many_devices import SupervisedProcess
from protofleet.runtime.children import Interpreters
from protofleet.runtime.restart_backoff import FIRST_SECONDS, LONGEST_SECONDS, STABLE_SECONDS
from tests.lab.local.test_resume import alive, descendants, name_of, wait_until

ROOT = Path(__file__).parents[3]


def members(folder, *names):
    for name in names:
        (folder / name).mkdir()
        (folder / name / "settings.toml").write_text("strange = 1\n")


def test_a_device_that_ends_in_error_is_restarted_and_a_signal_ends_all_devices(tmp_path):
    members(tmp_path, "d1")
    process = subprocess.Popen(
        [sys.executable, "-m", "protofleet", "fleet", str(tmp_path)],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    seen = []
    while sum("d1 ended with exit code 2" in line for line in seen) < 2:  # it was started a second time
        seen.append(process.stderr.readline())
        assert seen[-1], "".join(seen)
    process.send_signal(signal.SIGTERM)
    rest = process.stderr.read()
    assert process.wait(60) == 1 and "protofleet: signal SIGTERM" in rest
    assert any("strange" in line for line in seen), "what a device says is heard"


@pytest.mark.slow
def test_a_killed_device_is_forked_again_and_no_device_outlives_a_killed_fleet(tmp_path):
    members(tmp_path, "d1", "d2")
    for name in ("d1", "d2"):  # it waits for its settings, which no process writes
        (tmp_path / name / "settings.toml").unlink()
        (tmp_path / name / "settings.toml").symlink_to(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe")
    program = "from protofleet.lab.local import many_devices; many_devices.compute = lambda path: 'cpu'; "
    program += "many_devices.data_of = lambda settings: {}; "
    program += f"from protofleet.cli.main import main; main(['fleet', {str(tmp_path)!r}])"
    fleet = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def pid(name):
        found = [p for p in descendants(fleet.pid) if name_of(p) == name]
        return found[0] if found else 0

    assert wait_until(lambda: pid("d1") and pid("d2"), 60)
    first, other = pid("d1"), pid("d2")
    os.kill(first, signal.SIGKILL)
    assert fleet.stderr.readline() == "protofleet: d1 ended with exit code -9; restart in 1.0 s\n"
    assert wait_until(lambda: pid("d1") not in (0, first)) and pid("d2") == other
    assert "libtorch" in Path(f"/proc/{pid('d1')}/maps").read_text()
    family = descendants(fleet.pid)
    fleet.kill()
    assert wait_until(lambda: not any(alive(p) for p in family))
    fleet.communicate()


def test_backoff_grows_and_is_reset_by_a_stable_run(tmp_path):
    class Ended:
        def poll(self):
            return 1

    device, backoffs = SupervisedProcess((tmp_path / "d" / "settings.toml",), Interpreters()), []
    for _ in range(9):
        device.process, device.started_at = Ended(), 0.0
        assert "; restart in " in device.poll(1.0)
        backoffs.append(device.backoff.seconds)
        assert device.poll(device.restart_at - 0.01) == "" and device.process is None
    assert (
        backoffs[0] == 2 * FIRST_SECONDS and backoffs[-1] == LONGEST_SECONDS and backoffs == sorted(backoffs)
    )
    device.process = Ended()
    device.poll(STABLE_SECONDS + 1)
    assert device.backoff.seconds == FIRST_SECONDS


def test_a_folder_without_devices_is_refused(tmp_path, capsys):
    assert main(["fleet", str(tmp_path)]) == 2
    assert "it must contain a folder for each device" in capsys.readouterr().err
