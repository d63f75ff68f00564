"""Boards as values: a healthy Jetson, which a test can change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from protofleet.deploy.fleet.device.facts import Docker, Facts, Installed, KnownGood, ProgramFacts, Service
from protofleet.deploy.fleet.plan import Desired
from protofleet.deploy.fleet.settings import RolloutSettings
from protofleet.edge_client.host.status_file import Status

NOW = 1_790_000_000
RELEASE, SETTINGS, UNIT, MARK = "a" * 16, "b" * 16, "c" * 64, "d" * 16
WANTED = Desired(
    "board-7",
    RELEASE,
    "1 file",
    SETTINGS,
    UNIT,
    MARK,
    frozenset({"tls"}),
    "roots",
    "coordinator",
    RolloutSettings(),
)
GOOD = KnownGood(RELEASE, SETTINGS, UNIT, "eve@desk", NOW)


def jetson(**changes: Any) -> Facts:
    whole = Facts(
        "aarch64", 0, NOW, os="ubuntu 22.04", model="NVIDIA Jetson Orin Nano", l4t="36.4.3", nvidia=True,
        tools=frozenset({"rsync", "python3", "docker", "sha256sum", "runuser", "ssh-keygen"}),
        verifies=True, python="3.10.12", venv=True,
        systemd=249, systemd_state="running", clock_synced=True, groups=("render", "video"),
        disk_free=80_000_000_000, state_free=80_000_000_000, storage="/dev/nvme0n1p1", ram=8_000_000_000,
        ram_free=6_000_000_000, swap=8_000_000_000, temperatures=(("cpu-thermal", 48.0), ("gpu-thermal", 47.5)),
        nvpmodel="15W", docker=Docker("27.5.1", ("runc", "nvidia")), iptables="iptables v1.8.7 (legacy)",
        iptables_works=True, probe=ProgramFacts("2.5.0a0+nv24.08", True, "ok", True, NOW + 200 * 86_400),
    )  # fmt: skip
    return replace(whole, **changes)


def deployed(**changes: Any) -> Installed:
    """Return a board on which all of WANTED is installed, with a process that runs it."""
    whole = Installed(
        True, "roots", RELEASE, frozenset({RELEASE}), frozenset(), settings=b"signed", unit=UNIT, tls="tls",
        roots="roots", coordinator="coordinator", good=GOOD,
        service=Service("active", "running", True, 77, 0, RELEASE, MARK),
        status=Status(77, 1, NOW, "0.1.0", 5, connected=True, heard=True),
    )  # fmt: skip
    return replace(whole, **changes)


FILES = {
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
    "sys/class/thermal/thermal_zone0/temp": "48500",
    "sys/class/thermal/thermal_zone1/type": "gpu-thermal",
    "sys/class/thermal/thermal_zone1/temp": "51250",
    "sys/class/thermal/thermal_zone2/type": "cv0-thermal",  # It answers only while its unit has power.
    "sys/class/thermal/cooling_device0/type": "pwm-fan",
    "sys/class/thermal/cooling_device0/cur_state": "2",
    "sys/class/thermal/cooling_device0/max_state": "4",
    "sys/class/thermal/cooling_device1/type": "thermal-cpufreq-0",
    "sys/class/thermal/cooling_device1/cur_state": "0",
    "sys/class/thermal/cooling_device1/max_state": "10",
    "sys/class/hwmon/hwmon3/in1_label": "VDD_IN",
    "sys/class/hwmon/hwmon3/in1_input": "5000",
    "sys/class/hwmon/hwmon3/curr1_input": "1200",
    "sys/devices/platform/gpu.0/load": "750",
    "sys/class/power_supply/ac/online": "1",
    "var/lib/nvpmodel/status": "pmode:0002 fmode:fanNull",
    "proc/meminfo": "MemTotal: 8000 kB\nMemAvailable: 5000 kB\nSwapTotal: 400 kB\nSwapFree: 100 kB\nPages: 0\n",
    "proc/self/io": "rchar: 5\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n",
}


def jetson_files(root: Path) -> Path:
    """Write the kernel's files of a Jetson that the project reads, and return the root."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root
