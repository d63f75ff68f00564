"""The regular check whether a device may take new work: an override or the board's heat can forbid new work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from protofleet.edge_client.agent import Agent
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.overrides import Overrides, OverridesFile
from protofleet.edge_client.host.sensors import Sensors

# The device takes work again when the board is this many degrees below the limit.
RESUME_BELOW_CELSIUS: Final = 5.0

log = logging.getLogger("protofleet.device")


class Supervisor:
    def __init__(
        self,
        agent: Agent,
        settings: DeviceSettings,
        limit_trainer: Callable[[int, float], None],
        sensors: Sensors | None = None,
    ) -> None:
        """Supervise an agent.

        `limit_trainer` is called with the largest memory in bytes and the longest time in seconds of a training
        process.
        """
        self._agent, self._limit_trainer, self._sensors = agent, limit_trainer, sensors or Sensors()
        self._settings, self._overrides, self._too_hot = settings, Overrides(), False
        self._overrides_file: OverridesFile | None = None
        if settings.tuning:
            self._overrides_file = OverridesFile(
                Path(settings.tuning),
                Path(settings.enrolled),
                settings.name,
                Path(settings.folder),
                self.apply,
            )

    def check(self) -> None:
        if self._overrides_file is not None:
            self._overrides_file.check()
        self._check_heat()
        if self._overrides.paused:
            self._agent.pause("the operator has paused it")
        elif self._too_hot:
            self._agent.pause(f"{self._sensors.hottest():.0f} degrees")
        else:
            self._agent.resume()

    def _check_heat(self) -> None:
        limit = self._overrides.hottest_celsius or self._settings.hottest_celsius
        if not limit:
            self._too_hot = False
            return
        hottest = self._sensors.hottest()
        self._too_hot = hottest > limit or (self._too_hot and hottest > limit - RESUME_BELOW_CELSIUS)

    def apply(self, overrides: Overrides) -> None:
        self._overrides = overrides
        logging.getLogger("protofleet").setLevel(logging.DEBUG if overrides.verbose else logging.NOTSET)
        self._limit_trainer(overrides.trainer_memory_bytes, overrides.trainer_seconds)
