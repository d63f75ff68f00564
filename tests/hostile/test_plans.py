"""A plan that asks for more than a device's settings allow is refused in one line, and takes no memory."""

import contextlib
import re
from pathlib import Path

import pytest

from protofleet.edge_client.limits import DeviceLimits
from protofleet.methods.contract.plan import Network
from tests.hostile.federation import Federation

# The largest hidden layer that a run may have: it takes 385 MB of weights, and as much for the gradients, for the
# momentum and for the received weights.
WIDE, SIZE = 65_536, 22


def most_memory(number):
    """Return the most memory that a process or its child has ever had, in bytes, or 0 after their end."""
    place = Path(f"/proc/{number}")
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", (place / "status").read_text())
        children = (place / "task" / str(number) / "children").read_text().split()
        return max([1024 * int(found[1]) if found else 0, *map(most_memory, children)])
    return 0


def ends_with(federation, device, most=0):
    """Wait for the end of a device; return its exit code, its last words and its most memory in bytes."""

    def ended():
        nonlocal most
        most = max(most, most_memory(device.child.pid))
        return device.child.poll() is not None

    federation.wait_until(ended, f"{device.name} to end", 120.0)
    return device.child.returncode, federation.log_of(device), most


def farewells(federation, reason):
    with contextlib.suppress(OSError):  # The coordinator may have just started.
        return federation.metrics().get(f'protofleet_device_farewells_total{{reason="{reason}"}}')


def refused(log, words):
    lines = [line for line in log.splitlines() if "cannot follow the run's plan" in line]
    return "Traceback" not in log and any(words in line for line in lines)


@pytest.mark.parametrize("trainer", ["inside", "child"])
def test_a_plan_with_a_too_wide_network_is_refused_before_it_takes_memory(tmp_path, trainer):
    with Federation(tmp_path, "d", rounds=1, size=SIZE, network=Network("mlp", feature_size=WIDE)) as f:
        device = f.device("d", trainer=trainer, limits=DeviceLimits(memory_bytes=1_000_000_000))
        seen = f.wait_until(
            lambda: most_memory(device.child.pid), "its memory to be readable before it can end"
        )
        f.coordinator()
        code, log, most = ends_with(f, device, seen)
        assert code == 1 and refused(log, "more than this device's limits.memory_bytes = 1,000,000,000"), log
        assert 0 < most < 600_000_000, "only the imports take memory"
        f.wait_until(lambda: farewells(f, "cannot_follow"), "the coordinator to get the bye")


def test_a_plan_with_too_many_epochs_is_refused(tmp_path):
    with Federation(tmp_path, "d", rounds=1, method={"name": "fedavg", "epochs": 10**6}) as f:
        f.coordinator()
        device = f.device("d")
        code, log, _ = ends_with(f, device)
        assert code == 1 and refused(
            log, "takes 1,000,000 epochs, which is more than this device's limits.epochs"
        )


def test_work_that_takes_too_long_is_ended_and_reported_to_the_coordinator(tmp_path):
    with Federation(tmp_path, "d", rounds=1, method={"name": "fedavg", "epochs": 10**6, "batch": 1}) as f:
        f.coordinator()
        device = f.device("d", limits=DeviceLimits(epochs=10**6, work_seconds=2.0))
        f.wait_until(lambda: farewells(f, "training_died"), "the device to give up")
        assert device.child.poll() is None, "the device still runs, and will send a hello again"
        assert "the work did not end within 2 s, which is limits.work_seconds" in f.log_of(device)
