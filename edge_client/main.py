"""The process of one device, which loads the settings, the key and the data, and connects and runs the agent."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from prometheus_client.registry import Collector

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.shard import LOADED_BEFORE_FORK, Shards
from protofleet.edge_client.gpu.metrics import UsageCollector
from protofleet.edge_client.group.device import Assembly, Device, Process
from protofleet.edge_client.host.sensors import Sensors
from protofleet.edge_client.host.systemd import NotifySocket, SystemdNotifier, drain_on_signal
from protofleet.edge_client.metrics import watch_device
from protofleet.edge_client.serving.metrics import ModelCollector
from protofleet.edge_client.view import AgentView
from protofleet.methods.contract.liveness import tensors_work
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.runtime.allocator import keep_blocks_at_work
from protofleet.runtime.event_loop import serve, stop_on_signals
from protofleet.runtime.health import Check, Heartbeats, disk_is_writable, loop_is_running, watchdog
from protofleet.runtime.host.metrics import HostMetrics


def run_device(settings: DeviceSettings, software: str, version: int = 0) -> str:
    """Run the device until it ends or gets a signal, and return the reason if it ended early, or "".

    `version` is the version of the settings.
    """
    systemd = NotifySocket()
    keep_blocks_at_work()
    receive_queue, process = ReceiveQueue(), Process(settings.name)
    device = Assembly(process, software, Shards(LOADED_BEFORE_FORK)).device(settings, version, receive_queue)
    if settings.trainer == "inside":
        process.start_work(settings.threads)
    agent = device.agent
    stop_on_signals(receive_queue.put)
    drain_on_signal(agent, receive_queue.put)
    notifier = SystemdNotifier(agent, systemd, device.status, periodic_checks=device.check)
    systemd.notify("READY=1")
    try:
        agent.session.give_up_after(settings.patience_seconds, time.monotonic())
        metrics = serve_metrics(device, process, software)
        with metrics, watchdog(process.heartbeats, settings.watchdog_seconds):
            serve(notifier, receive_queue, time.monotonic, process.heartbeats)
        return agent.view.problem
    finally:
        device.transport.close()
        device.stop()


def serve_metrics(device: Device, process: Process, software: str) -> AbstractContextManager[None]:
    folder, settings = device.state.folder, device.settings
    checks = health(device.agent.view, process.heartbeats, folder, device.trainer.place)
    collectors: list[Collector] = [HostMetrics(software, "device", folder, settings.broker)]
    if device.trainer.admission is not None:
        collectors.append(UsageCollector(device.trainer.admission.usage))
    if device.models is not None:
        view = device.agent.view
        collectors.append(ModelCollector(device.models, lambda: view.models_unwritten))
    sensors = Sensors(Path(settings.board.root))
    return watch_device(device.agent, settings.endpoint(), checks, collectors, sensors)


def health(device: AgentView, heartbeats: Heartbeats, folder: Path, place: torch.device) -> dict[str, Check]:
    """Return the health checks by name; all pass if the device can do its work."""
    return {
        "loop": loop_is_running(heartbeats),
        "broker": lambda: "" if device.connected else "there is no session with the broker; see the log",
        "hello": lambda: (
            ""
            if device.coordinator_answered
            else "no coordinator has answered yet; does it run, does it know us?"
        ),
        "torch": lambda: tensors_work(place),
        "disk": disk_is_writable(folder),
    }
