"""The board's sensors of heat, power, memory and disk, read from the kernel's files when Prometheus scrapes them.

If the board lacks a sensor, the metric of this sensor is missing. On a Jetson, the chip INA3221 measures each rail,
and the program nvpmodel stores the power mode in a file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from protofleet.edge_client.host.memory_limits import available_within_limits

PREFIX: Final = "protofleet_device_"
# Largest number of zones, of coolers and of rails that are reported. There is a limit, because each of them has its
# own series.
MAX_SERIES: Final = 64
# The names of fans. The kernel's other cooling devices cool the board by making it slower.
FANS: Final = re.compile("fan", re.IGNORECASE)
GPU_LOAD: Final = (
    "sys/devices/platform/gpu.0/load",
    "sys/devices/gpu.0/load",
    "sys/devices/platform/bus@0/17000000.gpu/load",
)


class Sensors:
    """The sensors of a board, read from `sys` and `proc` in the file system at `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    @staticmethod
    def describe() -> list[GaugeMetricFamily | CounterMetricFamily]:
        """Return the descriptions of all metrics, including the metrics of sensors that this board lacks."""
        return [
            _gauge("temperature_celsius", "Temperature of each thermal zone that can be read", "zone"),
            _gauge(
                "cooling_ratio",
                "State of each cooler, from 0 (off) to 1 (full): fans, and throttling of the board",
                "cooler",
            ),
            _gauge(
                "throttled",
                "1 while the board is slowed down because it is hot (a cooler other than a fan works)",
            ),
            _gauge(
                "power_watts", "Power of each rail, on boards that measure it (a Jetson's INA3221)", "rail"
            ),
            _gauge("power_mode", "Number of the Jetson's present power mode (nvpmodel)"),
            _gauge(
                "mains", "1 while the board has external power and 0 on battery, on boards that measure it"
            ),
            _gauge("gpu_load_ratio", "Load of a Jetson's GPU, from 0 to 1"),
            _gauge(
                "memory_available_bytes",
                "Memory that is free for new work: of the machine, or of the process's smallest cgroup limit, "
                "for example of its container or service",
            ),
            _gauge("swap_used_bytes", "Used swap, on machines that have swap"),
            CounterMetricFamily(
                f"{PREFIX}disk_written_bytes",
                "Bytes that the agent has written to disk since its start; writing wears out flash",
                labels=[],
            ),
        ]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        readings = {name: list(values) for name, values in self._readings()}
        for family in self.describe():
            values = readings.get(family.name.removeprefix(PREFIX))
            for key, value in values or ():
                family.add_metric([key] if key else [], value)
            if values is not None:
                yield family

    def _readings(self) -> Iterator[tuple[str, Iterable[tuple[str, float]]]]:
        """Yield the name of each metric and its values by label; a single value has the label ""."""
        coolers = dict(self.coolers())
        throttled = any(level > 0 for name, level in coolers.items() if not FANS.search(name))
        yield "temperature_celsius", self.temperatures()
        yield "cooling_ratio", coolers.items()
        yield "throttled", [("", float(throttled))]
        yield "power_watts", self.rails()
        for name, value in self._unlabelled():
            yield name, [("", value)]

    def temperatures(self) -> Iterator[tuple[str, float]]:
        for zone in sorted(self._root.glob("sys/class/thermal/thermal_zone*"))[:MAX_SERIES]:
            with contextlib.suppress(OSError, ValueError):  # Some zones cannot be read at all times.
                yield f"{zone.name}:{_read(zone / 'type')}", int(_read(zone / "temp")) / 1000

    def hottest(self) -> float:
        """Return the temperature of the hottest zone in degrees Celsius; minus infinity if there is no zone."""
        return max((value for _, value in self.temperatures()), default=float("-inf"))

    def coolers(self) -> Iterator[tuple[str, float]]:
        for cooler in sorted(self._root.glob("sys/class/thermal/cooling_device*"))[:MAX_SERIES]:
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                level = int(_read(cooler / "cur_state")) / int(_read(cooler / "max_state"))
                yield f"{cooler.name}:{_read(cooler / 'type')}", level

    def rails(self) -> Iterator[tuple[str, float]]:
        count = 0
        for chip in sorted(self._root.glob("sys/class/hwmon/hwmon*")):
            for name, watts in (*_power_sensors(chip), *_current_sensors(chip)):
                if (count := count + 1) > MAX_SERIES:
                    return
                yield f"{chip.name}:{name}", watts

    def _unlabelled(self) -> Iterator[tuple[str, float]]:
        memory = dict(self._memory())
        if "MemAvailable" in memory:
            yield (
                "memory_available_bytes",
                min([memory["MemAvailable"], *available_within_limits(self._root)]),
            )
        if memory.get("SwapTotal"):
            yield "swap_used_bytes", memory["SwapTotal"] - memory.get("SwapFree", 0)
        for path in GPU_LOAD:
            with contextlib.suppress(OSError, ValueError):
                yield "gpu_load_ratio", int(_read(self._root / path)) / 1000
                break
        with contextlib.suppress(OSError):
            for mode in re.findall(r"pmode:(\d+)", _read(self._root / "var/lib/nvpmodel/status"))[:1]:
                yield "power_mode", int(mode)
        for online in sorted(self._root.glob("sys/class/power_supply/*/online"))[:1]:
            with contextlib.suppress(OSError, ValueError):
                yield "mains", int(_read(online))
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = _read(self._root / "proc/self/io").splitlines()
            written = next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
            yield "disk_written_bytes", written

    def _memory(self) -> Iterator[tuple[str, int]]:
        with contextlib.suppress(OSError):
            for line in _read(self._root / "proc/meminfo").splitlines():
                name, _, value = line.partition(":")
                if value.strip().endswith("kB"):
                    yield name, int(value.split()[0]) * 1024


def _power_sensors(chip: Path) -> Iterator[tuple[str, float]]:
    """Yield the name and the watts of each rail of a chip that measures power."""
    for path in sorted(chip.glob("power*_input")):
        with contextlib.suppress(OSError, ValueError):
            label = path.with_name(path.name.replace("_input", "_label"))
            yield _read(label) if label.exists() else path.name.removesuffix("_input"), int(_read(path)) / 1e6


def _current_sensors(chip: Path) -> Iterator[tuple[str, float]]:
    """Yield the name and the watts of each rail of a chip that measures voltage and current.

    Such a chip, for example a Jetson's INA3221, gives millivolts and milliamperes.
    """
    for path in sorted(chip.glob("curr*_input")):
        with contextlib.suppress(OSError, ValueError):
            number = path.name.removeprefix("curr").removesuffix("_input")
            label = _read(chip / f"in{number}_label")
            yield label, int(_read(path)) * int(_read(chip / f"in{number}_input")) / 1e6


def _gauge(name: str, description: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", description, labels=labels)


def _read(path: Path) -> str:
    return path.read_text().strip()
