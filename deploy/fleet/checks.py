"""Check whether a host meets the requirements.

The checks compute verdicts from the state that a host reports. Each verdict has a reason and advice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from protofleet.deploy.fleet.device.facts import Facts, ProgramFacts
from protofleet.deploy.fleet.device.roles import BROKER
from protofleet.protocol.security.records import day

Verdict: TypeAlias = Literal["PASS", "WARN", "FAIL"]

GB: Final = 1e9
MB: Final = 1e6
ARCHITECTURES: Final = ("x86_64", "aarch64")
OLDEST_PYTHON: Final = (3, 10)
NEWEST_PYTHON: Final = (3, 13)
# Free bytes on the disk that a release needs. The host needs more if it fetches torch with the other packages.
MIN_DISK: Final = 2 * GB
MIN_DISK_WITH_TORCH: Final = 8 * GB
LOW_DISK: Final = 5 * GB
MIN_RAM: Final = 0.7 * GB
LOW_RAM: Final = 2.5 * GB
MIN_BROKER_DISK, MIN_BROKER_RAM = 0.5 * GB, 2.2 * GB
OLDEST_MOSQUITTO: Final = (2, 0, 11)
# Seconds by which a host's clock may differ from the operator's clock. The validity of a certificate begins one
# hour before its issue, so a host whose clock is slightly behind accepts a new certificate.
MAX_CLOCK_OFFSET_SECONDS: Final = 300.0
# Unix time before all of our certificates were issued. A clock with an earlier time is wrong.
EARLIEST_TIME: Final = 1_750_000_000
CLOCK_FIX: Final = "set the clock: `timedatectl set-ntp true`; a board without a battery needs NTP at boot"
# From HOT on, a check warns. From TOO_HOT on, the check fails. Both are in degrees Celsius. A Jetson Orin reduces
# its speed from 99 degrees and shuts down at 104.5.
HOT, TOO_HOT = 85.0, 97.0
EXPIRES_SOON_DAYS, EXPIRES_NOW_DAYS = 30.0, 2.0
# Docker 28.0.0 to 28.0.2 need a kernel option that L4T, the Linux of Jetsons, lacks. Without this option, containers
# have no network.
BAD_DOCKER: Final = re.compile(r"28\.0\.[012]\b")
OLDEST_DOCKER: Final = (20, 10)
TESTED_L4T: Final = {36: "JetPack 6", 38: "JetPack 7", 39: "JetPack 7"}


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: Verdict
    reason: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """The software that the host is to run.

    The defaults are for `protofleet doctor`, which has no fleet file.
    """

    kind: str = "venv"  # "venv", "container" or "broker"
    fetches_torch: bool = False
    needs_gpu: bool = False  # True if the device's setting compute is "cuda".
    python: str = "python3"


def run_checks(facts: Facts, use: Workload, now: float) -> list[Check]:
    """Run all checks on the state that a host reports. `now` is the time of the operator's clock."""
    checks = [
        *_machine(facts, use), *_system(facts, use), *_capacity(facts, use), *_clock(facts, now), *_sensors(facts),
        *_probe_results(facts, use, now),
    ]  # fmt: skip
    return [*checks, *(_engine(facts, use) if use.kind == "container" else ())]


def failures(checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.verdict == "FAIL"]


def _machine(f: Facts, use: Workload) -> Iterator[Check]:
    known = f.arch in ARCHITECTURES
    yield Check(
        "architecture", "PASS" if known else "FAIL",
        f.arch if known else f"{f.arch}, for which there is no torch", "use a board with a 64-bit system",
    )  # fmt: skip
    if f.l4t:
        major = (*_numbers(f.l4t), 0)[0]
        known = major in TESTED_L4T
        yield Check(
            "L4T", "PASS" if known else "WARN", f"{f.l4t} ({TESTED_L4T.get(major, 'no JetPack that is tested')})",
            "flash JetPack 6 (L4T 36) or 7, whose Python is 3.10 or later",
        )  # fmt: skip
    free = {0: "PASS"}.get(f.uid, "FAIL")
    yield Check("root", free, f"user id {f.uid}", "deploy as root, or as a user who may `sudo -n`")  # type: ignore[arg-type]


def _system(f: Facts, use: Workload) -> Iterator[Check]:
    yield _tool(f, "rsync", "apt-get install rsync")
    yield _ssh_keygen(f)
    up = f.systemd_state in ("running", "degraded", "starting")
    state = (
        f"systemd {f.systemd} is {f.systemd_state or 'in an unknown state'}"
        if f.systemd
        else "there is no systemd"
    )
    yield Check(
        "systemd", "PASS" if f.systemd and up else "FAIL", state, "use a system that was booted with systemd"
    )
    if use.kind == "venv":
        yield from _python(f, use)
        return
    if use.kind == BROKER:
        yield from _mosquitto(f)
    if use.kind in (BROKER, "container"):
        yield _tool(
            f, "python3", "apt-get install python3 (any version): python3 verifies the signature of a release"
        )


def _ssh_keygen(f: Facts) -> Check:
    fix = "apt-get install openssh-client (8.2 or later): ssh-keygen verifies the signature of a release"
    if "ssh-keygen" in f.tools and not f.verifies:
        return Check("ssh-keygen", "FAIL", "ssh-keygen is older than OpenSSH 8.2", fix)
    return _tool(f, "ssh-keygen", fix)


def _mosquitto(f: Facts) -> Iterator[Check]:
    yield _tool(f, "mosquitto", "apt-get install mosquitto")
    if f.mosquitto and _numbers(f.mosquitto) < OLDEST_MOSQUITTO:
        yield Check("mosquitto", "FAIL", f"{f.mosquitto} is too old", "install 2.0.11 or later")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _python(f: Facts, use: Workload) -> Iterator[Check]:
    """Check the Python of the setting `software.python`. This Python makes the venv of a release."""
    named = f"{use.python} (software.python)"
    package = f"apt-get install {use.python}-venv" if "/" not in use.python else "install its module venv"
    version = _numbers(f.python)[:2]
    if not version:
        fix = f"{package}, or name another in software.python"
        yield Check("python", "FAIL", f"there is no {named}", fix)
        return
    fits = OLDEST_PYTHON <= version <= NEWEST_PYTHON
    yield Check(
        "python",
        "PASS" if fits else "FAIL",
        f"{named} is {f.python}",
        "install Python 3.10 to 3.13 and name it in software.python, such as python3.12",
    )
    yield Check(
        "venv", "PASS" if f.venv else "FAIL",
        f"{use.python} -m venv works" if f.venv else f"{use.python} -m venv does not work", package,
    )  # fmt: skip


def _capacity(f: Facts, use: Workload) -> Iterator[Check]:
    if use.kind == BROKER:
        yield from _broker_capacity(f)
        return
    least = MIN_DISK_WITH_TORCH if use.fetches_torch or use.kind == "container" else MIN_DISK
    free = min(f.disk_free, f.state_free)
    full = free < (0.2 * GB if f.installed.release else least)
    yield Check(
        "disk", "FAIL" if full else "WARN" if free < LOW_DISK else "PASS", f"{free / GB:.1f} GB are free",
        f"make room for {least / GB:.0f} GB, or use a larger disk",
    )  # fmt: skip
    slow = "mmcblk" in f.storage
    yield Check(
        "storage", "WARN" if slow else "PASS",
        f"{f.storage or 'unknown'}{', an SD card or eMMC: slow, and writing wears it out' if slow else ''}",
        "put /var/lib/protofleet on an NVMe disk",
    )  # fmt: skip
    verdict: Verdict = "FAIL" if f.ram < MIN_RAM else "WARN" if f.ram < LOW_RAM else "PASS"
    yield Check(
        "memory", verdict, f"{f.ram / GB:.1f} GB, {f.ram_free / GB:.1f} free", "use a board with more memory"
    )
    if f.l4t or f.ram < 4.5 * GB:
        yield Check(
            "swap", "PASS" if f.swap else "WARN", f"{f.swap / GB:.1f} GB",
            "make a swap file on NVMe: a GPU that shares the memory leaves little of it",
        )  # fmt: skip


def _broker_capacity(f: Facts) -> Iterator[Check]:
    free = min(f.disk_free, f.state_free)
    yield Check(
        "disk", "PASS" if free >= MIN_BROKER_DISK else "FAIL", f"{free / GB:.1f} GB are free",
        f"make room for {MIN_BROKER_DISK / GB:.1f} GB, because the broker stores its queues on the disk",
    )  # fmt: skip
    least = f.ram >= MIN_BROKER_RAM
    yield Check(
        "memory", "PASS" if least else "WARN", f"{f.ram / GB:.1f} GB, {f.ram_free / GB:.1f} free",
        "set memory_bytes of [mosquitto] below the memory of this host",
    )  # fmt: skip


def _clock(f: Facts, now: float) -> Iterator[Check]:
    off = f.now - now
    if f.now < EARLIEST_TIME:
        yield Check("clock", "FAIL", f"it is set to {day(f.now)}", CLOCK_FIX)
        return
    if abs(off) > MAX_CLOCK_OFFSET_SECONDS:
        words = (
            f"{abs(off):.0f} s {'behind' if off < 0 else 'ahead of'} the operator's clock; certificates "
            "would not be valid"
        )
        yield Check(
            "clock",
            "FAIL",
            words,
            CLOCK_FIX,
        )
        return
    words = f"within {abs(off):.0f} s of the operator's clock" + (
        "" if f.clock_synced else ", but not synchronized"
    )
    yield Check("clock", "WARN" if f.clock_synced is False else "PASS", words, "`timedatectl set-ntp true`")


def _sensors(f: Facts) -> Iterator[Check]:
    if f.temperatures:
        zone, most = max(f.temperatures, key=lambda pair: pair[1])
        verdict: Verdict = "FAIL" if most >= TOO_HOT else "WARN" if most >= HOT else "PASS"
        yield Check(
            "temperature",
            verdict,
            f"{most:.0f} degrees ({zone})",
            "improve the cooling of the host, or choose a lower nvpmodel",
        )
    if f.l4t:
        known = bool(f.nvpmodel)
        yield Check(
            "nvpmodel", "PASS" if known else "WARN", f.nvpmodel or "the power mode cannot be read",
            "`nvpmodel -m 0` for full speed, or the mode that your power supply is rated for",
        )  # fmt: skip


def torch_words(probe: ProgramFacts) -> str:
    """Describe torch: its version, its build, its size on the disk, and whether it can use a GPU of the host."""
    build = f"built for {'the CPU alone' if probe.torch_build == 'cpu' else probe.torch_build}"
    size = f"{probe.torch_bytes / MB:,.0f} MB on disk"
    seen = f"{'with' if probe.cuda else 'without'} CUDA{' here' if probe.torch_build else ''}"
    known = [build, size] if probe.torch_build else []
    return ", ".join([f"torch {probe.torch or 'is missing'}", *known, seen])


def _probe_results(f: Facts, use: Workload, now: float) -> Iterator[Check]:
    probe = f.probe
    if probe is None:
        return
    if use.kind == BROKER:
        return
    if probe.torch or (use.kind == "venv" and not use.fetches_torch):
        lacking = use.needs_gpu and not probe.cuda
        words = torch_words(probe)
        idle_gpu = bool(f.l4t) and not probe.cuda and not lacking
        yield Check(
            "torch", "FAIL" if lacking or not probe.torch else "WARN" if idle_gpu else "PASS", words,
            'install NVIDIA\'s own torch for this L4T, or set compute = "cpu"',
        )  # fmt: skip
    if probe.broker_tcp is False and not probe.broker:
        yield Check(
            "broker",
            "FAIL",
            "its port cannot be reached from the device",
            "check routes, firewalls and the port",
        )
    if probe.broker:
        yield Check(
            "broker",
            "PASS" if probe.broker == "ok" else "FAIL",
            probe.broker,
            "see docs/security.md, the broker",
        )
    if probe.cert_until:
        days = (probe.cert_until - now) / 86_400
        verdict: Verdict = (
            "FAIL" if days < EXPIRES_NOW_DAYS else "WARN" if days < EXPIRES_SOON_DAYS else "PASS"
        )
        words = f"{days:.0f} days left" if days > 0 else "has expired"
        yield Check(
            "certificate",
            verdict,
            words,
            "deploy again: a deployment renews a certificate in its last 30 days",
        )


def _engine(f: Facts, use: Workload) -> Iterator[Check]:
    if f.docker is None or not f.docker.version:
        words = (
            "docker is not installed"
            if f.docker is None
            else "docker is installed, and its engine does not answer"
        )
        fix = "install it" if f.docker is None else "`systemctl status docker`; on JetPack 6 look at iptables"
        yield Check("docker", "FAIL", words, f'{fix}, or set software.kind = "venv", which needs no docker')
    else:
        yield _docker_version(f.docker.version)
    if f.l4t and f.docker is not None:
        there = "nvidia" in f.docker.runtimes
        yield Check(
            "nvidia runtime", "PASS" if there else "FAIL", "configured" if there else "docker has no nvidia runtime",
            "apt-get install nvidia-container-toolkit; nvidia-ctk runtime configure; restart docker",
        )  # fmt: skip
    if f.iptables_works is False:
        yield Check(
            "iptables", "FAIL", f"{f.iptables} does not work with this kernel, so no container has a network",
            "update-alternatives --set iptables /usr/sbin/iptables-legacy; restart docker",
        )  # fmt: skip


def _docker_version(version: str) -> Check:
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if BAD_DOCKER.match(version):
        return Check(
            "docker",
            "FAIL",
            f"{version} breaks containers on Jetsons",
            "install 27.5.1 or 28.0.4, and keep this version with `apt-mark hold`",
        )
    if numbers < OLDEST_DOCKER:
        return Check("docker", "FAIL", f"{version} is too old", "install 20.10 or later")
    return Check("docker", "PASS", version)


def _tool(f: Facts, tool: str, fix: str) -> Check:
    there = tool in f.tools
    return Check(tool, "PASS" if there else "FAIL", "installed" if there else f"{tool} is not installed", fix)
