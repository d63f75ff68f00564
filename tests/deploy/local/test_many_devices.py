"""`protofleet fleet`: each device a process, restarted when it ends in error, all ended by one signal."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from protofleet.deploy.cli.main import main
from protofleet.deploy.local.many_devices import FIRST_BACKOFF, LONGEST_BACKOFF, STABLE_SECONDS, DeviceProcess

ROOT = Path(__file__).parents[3]


def members(folder, *names):
    for name in names:
        (folder / name).mkdir()
        (folder / name / "settings.toml").write_text("strange = 1\n")


def test_a_device_that_ends_in_error_is_restarted_and_all_end_with_a_signal(tmp_path):
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


def test_backoff_grows_and_is_reset_by_a_stable_run(tmp_path):
    class Ended:
        def poll(self):
            return 1

    device, backoffs = DeviceProcess(tmp_path / "d" / "settings.toml"), []
    for _ in range(9):
        device.process, device.started_at = Ended(), 0.0
        assert "; restart in " in device.poll(1.0)
        backoffs.append(device.backoff)
        assert device.poll(device.restart_at - 0.01) == "" and device.process is None
    assert (
        backoffs[0] == 2 * FIRST_BACKOFF and backoffs[-1] == LONGEST_BACKOFF and backoffs == sorted(backoffs)
    )
    device.process = Ended()
    device.poll(STABLE_SECONDS + 1)
    assert device.backoff == FIRST_BACKOFF


def test_a_folder_without_devices_is_a_mistake_in_one_line(tmp_path, capsys):
    assert main(["fleet", str(tmp_path)]) == 2
    assert "it must hold a folder for each device" in capsys.readouterr().err
