"""`protofleet fleet`: each device a process, started again when it ends in error, all ended by one signal."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from protofleet.deploy.cli.main import main
from protofleet.deploy.local.many_devices import FIRST_PAUSE, LONGEST_PAUSE, STEADY_SECONDS, Member

ROOT = Path(__file__).parents[3]


def members(folder, *names):
    for name in names:
        (folder / name).mkdir()
        (folder / name / "settings.toml").write_text("strange = 1\n")


def test_a_device_that_ends_in_error_is_started_again_and_all_end_with_a_signal(tmp_path):
    members(tmp_path, "d1")
    process = subprocess.Popen(
        [sys.executable, "-m", "protofleet", "fleet", str(tmp_path)],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    seen = []
    while sum("d1 ended with 2" in line for line in seen) < 2:  # it was started a second time
        seen.append(process.stderr.readline())
        assert seen[-1], "".join(seen)
    process.send_signal(signal.SIGTERM)
    rest = process.stderr.read()
    assert process.wait(60) == 1 and "protofleet: signal SIGTERM" in rest
    assert any("strange" in line for line in seen), "what a device says is heard"


def test_pauses_grow_and_are_forgiven_by_a_steady_life(tmp_path):
    class Ended:
        def poll(self):
            return 1

    member, pauses = Member(tmp_path / "d" / "settings.toml"), []
    for _ in range(9):
        member.process, member.began = Ended(), 0.0
        assert "is started again" in member.look(1.0)
        pauses.append(member.pause)
        assert member.look(member.again_at - 0.01) == "" and member.process is None
    assert pauses[0] == 2 * FIRST_PAUSE and pauses[-1] == LONGEST_PAUSE and pauses == sorted(pauses)
    member.process = Ended()
    member.look(STEADY_SECONDS + 1)
    assert member.pause == FIRST_PAUSE


def test_a_folder_without_devices_is_a_mistake_in_one_line(tmp_path, capsys):
    assert main(["fleet", str(tmp_path)]) == 2
    assert "it must hold a folder for each device" in capsys.readouterr().err
