"""Write the systemd units of a fleet's services, with their sandbox, limits and rules for restarts."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.device.facts import Facts
from protofleet.deploy.fleet.device.roles import BROKER, DEVICE, Role
from protofleet.deploy.fleet.settings import OPTION_PATTERN, Host, Software
from protofleet.edge_client.config import DeviceSettings
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.user_error import BY_SIGNAL

# Bytes that the service leaves to other programs, and to a GPU that shares the memory.
RESERVED_MEMORY: Final = 1_500_000_000
MARK_DIGITS: Final = 16
# The first version of systemd that can increase the delay between restarts.
RESTART_STEPS_SYSTEMD: Final = 254

# MemoryDenyWriteExecute is left out, because torch compiles kernels for the CPU at run time.
SANDBOX: Final = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome={home}
ProtectProc=invisible
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
PrivateTmp=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
UMask=0077
"""
# The sandbox refuses sched_setaffinity and setpriority. The threads of torch call these two functions, and still work
# if the calls fail.
NO_GPU_SANDBOX: Final = "PrivateDevices=yes\nDevicePolicy=closed\nProtectClock=yes\n"

VENV_UNIT: Final = """\
# Written by protofleet deploy; the next deployment replaces it.
[Unit]
Description=protofleet device {name}
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
User=protofleet
Group=protofleet
{groups}ExecStart={command}
WorkingDirectory=/var/lib/protofleet
StateDirectory=protofleet
StateDirectoryMode=0700
RuntimeDirectory=protofleet
RuntimeDirectoryMode=0755
Environment=HOME=/var/lib/protofleet PYTHONDONTWRITEBYTECODE=1 PROTOFLEET_UNIT={mark}
Restart=always
SuccessExitStatus={by_sigterm}
{backoff}TimeoutStartSec=10min
TimeoutStopSec=30s
WatchdogSec=60s
# A child that the kernel kills for want of memory is reported, and no reason to end.
OOMPolicy=continue
OOMScoreAdjust=500
MemoryMax={memory}
TasksMax=256
LogRateLimitIntervalSec=60s
LogRateLimitBurst=300
{hardened}
[Install]
WantedBy=multi-user.target
"""


# Docker confines the container. systemd watches Docker's client, which forwards signals to the container.
CONTAINER_UNIT: Final = """\
# Written by protofleet deploy; the next deployment replaces it.
[Unit]
Description=protofleet device {name}, in a container
Requires=docker.service
Wants=network-online.target
After=docker.service network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStartPre=-/usr/bin/env docker rm --force protofleet-device
ExecStartPre=/usr/bin/install -d -m 0755 -o protofleet -g protofleet /run/protofleet
ExecStart={command}
ExecStopPost=-/usr/bin/env docker rm --force protofleet-device
ExecStopPost=-/usr/bin/env rm -f /run/protofleet/status.json
Environment=PROTOFLEET_UNIT={mark}
Environment="PROTOFLEET_DOCKER={options}"
Restart=always
SuccessExitStatus={by_sigterm}
{backoff}TimeoutStartSec=10min
TimeoutStopSec=30s
LogRateLimitIntervalSec=60s
LogRateLimitBurst=300

[Install]
WantedBy=multi-user.target
"""


# When a run is over, the service stays active, so that a deployment does not begin the run again. After exit
# code 2 (wrong settings), 3 (another coordinator leads) or 4 (a diverged run) there is no restart, because the same
# error would occur again. systemd stops the service with SIGINT, and no other program sends SIGINT to it. So an
# end by SIGINT counts as success. Other programs may send SIGTERM, so after an end by SIGTERM the service must
# start again.
COORDINATOR_UNIT: Final = """\
# Written by protofleet deploy; the next deployment replaces it.
[Unit]
Description=protofleet coordinator
Wants=network-online.target
After=network-online.target time-sync.target protofleet-broker.service
StartLimitIntervalSec=0

[Service]
Type=exec
RemainAfterExit=yes
User={user}
Group={user}
ExecStart={command}
WorkingDirectory={home}
StateDirectory={label}
StateDirectoryMode=0700
Environment=HOME={home} PYTHONDONTWRITEBYTECODE=1 PROTOFLEET_UNIT={mark}
Restart=on-failure
RestartPreventExitStatus=2 3 4 5
KillSignal=SIGINT
SuccessExitStatus={by_sigint}
{backoff}TimeoutStopSec=90s
OOMScoreAdjust=-100
MemoryMax={memory}
TasksMax=512
{hardened}
[Install]
WantedBy=multi-user.target
"""

BROKER_UNIT: Final = """\
# Written by protofleet deploy; the next deployment replaces it.
[Unit]
Description=protofleet broker
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
Group={user}
ExecStart=/usr/bin/env mosquitto -c {etc}/mosquitto.conf
ExecReload=/bin/kill -HUP $MAINPID
WorkingDirectory={home}
StateDirectory={label}
StateDirectoryMode=0700
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin PROTOFLEET_UNIT={mark}
Restart=always
{backoff}TimeoutStopSec=30s
OOMScoreAdjust=-500
LimitNOFILE=65536
{hardened}
[Install]
WantedBy=multi-user.target
"""


def service_unit(role: Role, facts: Facts, host: Host) -> str:
    """Return the unit of the broker or the coordinator."""
    command = f"{role.top}/current/bin/protofleet {role.name} {role.settings} --enrolled {role.keys}"
    text = (BROKER_UNIT if role.name == BROKER else COORDINATOR_UNIT).format(
        user=role.user, home=role.home, label=role.label, etc=role.etc, command=command, mark="{mark}",
        by_sigint=BY_SIGNAL + signal.SIGINT,
        backoff=_backoff(facts), hardened=SANDBOX.format(home="yes") + NO_GPU_SANDBOX, memory=_memory(facts, host),
    )  # fmt: skip
    return _marked(text)


def _backoff(facts: Facts) -> str:
    steps = "RestartSteps=6\nRestartMaxDelaySec=5min\n" if facts.systemd >= RESTART_STEPS_SYSTEMD else ""
    return "RestartSec=10s\n" + steps


def _memory(facts: Facts, host: Host) -> int:
    return host.memory_bytes or max(512_000_000, facts.ram - RESERVED_MEMORY)


def _marked(text: str) -> str:
    return text.replace("{mark}", sha256_of(text)[:MARK_DIGITS])


def unit_of(facts: Facts, host: Host, settings: DeviceSettings, software: Software) -> str:
    in_container = software.kind == "container"
    gpu = settings.compute != "cpu" and (bool(facts.l4t) or facts.nvidia)
    memory = _memory(facts, host)
    at_home = settings.data.root.startswith(("/home/", "/root/"))
    hardened = SANDBOX.format(home="read-only" if at_home else "yes") + ("" if gpu else NO_GPU_SANDBOX)
    if outside := _models_outside(settings):
        hardened += f"ReadWritePaths=-{outside}\n"
    text = (CONTAINER_UNIT if in_container else VENV_UNIT).format(
        name=settings.name,
        mark="{mark}",
        command=f"{DEVICE.top}/current/bin/protofleet device {DEVICE.settings} --enrolled {DEVICE.keys}",
        groups=f"SupplementaryGroups={' '.join(facts.groups)}\n" if gpu and facts.groups else "",
        by_sigterm=BY_SIGNAL + signal.SIGTERM,
        backoff=_backoff(facts),
        memory=memory,
        hardened=hardened,
        options=" ".join(_docker_options(facts, settings, memory, gpu)) if in_container else "",
    )
    return _marked(text)


def _models_outside(settings: DeviceSettings) -> str:
    """Return the folder of the models that a device serves, if the unit must allow writing to it; else "".

    The service may always write to its own state folder, so a folder of models inside it needs no permission.
    """
    if settings.models is None or not settings.models.serves:
        return ""
    folder = settings.models.folder_in(Path(settings.folder))
    if folder.is_relative_to(DEVICE.home):
        return ""
    return _plain(str(folder), "models.folder")


def _plain(path: str, what: str) -> str:
    if not OPTION_PATTERN.fullmatch(path):
        raise SettingsError(
            f"{what} is {path!r}; a deployed device needs a path without spaces and special characters"
        )
    return path


def _docker_options(facts: Facts, settings: DeviceSettings, memory: int, gpu: bool) -> Iterator[str]:
    yield f"--name protofleet-device --memory {memory} --oom-score-adj 500 --log-driver none"
    yield "--volume /run/protofleet:/run/protofleet"
    if settings.data.root:
        if not OPTION_PATTERN.fullmatch(settings.data.root):
            raise SettingsError(
                f"data.root is {settings.data.root!r}; a container needs a path without spaces and special characters"
            )
        yield f"--volume {settings.data.root}:{settings.data.root}:ro"
    if outside := _models_outside(settings):
        yield f"--volume {outside}:{outside}"
    template = settings.models.template if settings.models is not None else ""
    # A shipped template is visible in the container already.
    if template and not template.startswith(f"{DEVICE.top}/wheels/"):
        yield f"--volume {_plain(template, 'models.template')}:{template}:ro"
    if gpu:
        yield "--runtime nvidia" if facts.l4t else "--gpus all"
        yield from (f"--group-add {group}" for group in facts.groups)


def mark_of(unit: str) -> str:
    """Return the id of a unit. The environment of each process that the unit starts has this id."""
    return unit.partition("PROTOFLEET_UNIT=")[2][:MARK_DIGITS]


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
