"""In a container or a service, the limits determine the available memory, not the memory of the machine."""

import pytest

from protofleet.edge_client.host.memory_limits import V1, V2
from protofleet.edge_client.host.sensors import Sensors

MIB = 1 << 20
UNLIMITED_V1 = "9223372036854771712"


def machine(root, groups, available=8000):
    """Write the /proc files of a machine: `groups` is the text of /proc/self/cgroup, `available` is in MiB."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 16000000 kB\nMemAvailable: {available * 1024} kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    return root


def group(root, version, path, limit, used, unused_files=0):
    folder = root / version.folder / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / version.limit).write_text(f"{limit}\n")
    (folder / version.used).write_text(f"{used * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{version.reclaimable} {unused_files * MIB}\n")


def left(root):
    (family,) = (f for f in Sensors(root).collect() if f.name == "protofleet_device_memory_available_bytes")
    return family.samples[0].value / MIB


@pytest.mark.parametrize(
    ("version", "groups"),
    [
        (V2, "0::/\n"),
        (V1, "5:cpu:/docker/1f\n4:memory:/docker/1f\n0::/\n"),
        (V1, "7:cpu,memory:/docker/1f\n"),
    ],
)
def test_the_available_memory_of_a_container_follows_its_limit(tmp_path, version, groups):
    root = machine(tmp_path, groups)
    group(root, version, "", 1024 * MIB, used=700, unused_files=150)
    assert left(root) == 1024 - 700 + 150


def test_the_smallest_remainder_of_a_service_and_its_slice_is_available(tmp_path):
    root = machine(tmp_path, "0::/system.slice/protofleet.service\n")
    group(root, V2, "system.slice/protofleet.service", 900 * MIB, used=100)
    group(root, V2, "system.slice", 2000 * MIB, used=1700)
    assert left(root) == 300
    group(root, V2, "system.slice", "max", used=1700)
    assert left(root) == 800
    group(root, V2, "system.slice/protofleet.service", 900 * MIB, used=950)
    assert left(root) == 0


@pytest.mark.parametrize(
    ("version", "groups", "limit"), [(V2, "0::/\n", "max"), (V1, "4:memory:/\n", UNLIMITED_V1)]
)
def test_without_a_limit_the_free_memory_of_the_machine_is_available(tmp_path, version, groups, limit):
    root = machine(tmp_path, groups)
    group(root, version, "", limit, used=500)
    assert left(root) == 8000
    assert left(machine(tmp_path / "bare", "")) == 8000
    (tmp_path / "proc/self/cgroup").write_text("nonsense")
    assert left(root) == 8000


def test_a_limit_above_the_free_memory_of_the_machine_has_no_effect(tmp_path):
    root = machine(tmp_path, "0::/\n", available=100)
    group(root, V2, "", 4096 * MIB, used=10)
    assert left(root) == 100
