"""Looks after a device every few seconds: what is said from afar, and how hot the board is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from protofleet.edge_client.agent import Agent
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.overrides import Overrides, OverridesFile
from protofleet.edge_client.host.sensors import Sensors

COOLER: Final = 5.0  # degrees below the limit before work is taken again

log = logging.getLogger("protofleet.device")


class Supervisor:
    def __init__(
        self,
        agent: Agent,
        settings: DeviceSettings,
        limit: Callable[[int, float], None],
        board: Sensors | None = None,
    ) -> None:
        """`limit` is told what a training process may take."""
        self._agent, self._limit, self._board = agent, limit, board or Sensors()
        self._settings, self._tuning, self._hot = settings, Overrides(), False
        self._tuner: OverridesFile | None = None
        if settings.tuning:
            places = (Path(settings.tuning), Path(settings.enrolled))
            self._tuner = OverridesFile(*places, settings.name, Path(settings.folder), self.apply)

    def look(self) -> None:
        if self._tuner is not None:
            self._tuner.look()
        self._feel()
        if self._tuning.paused:
            self._agent.hold("told so")
        elif self._hot:
            self._agent.hold(f"{self._board.hottest():.0f} degrees")
        else:
            self._agent.resume()

    def _feel(self) -> None:
        limit = self._tuning.hottest_celsius or self._settings.hottest_celsius
        heat = self._board.hottest() if limit else float("-inf")
        self._hot = heat > limit or (self._hot and heat > limit - COOLER) if limit else False

    def apply(self, tuning: Overrides) -> None:
        self._tuning = tuning
        logging.getLogger("protofleet").setLevel(logging.DEBUG if tuning.verbose else logging.NOTSET)
        self._limit(tuning.trainer_memory_bytes, tuning.trainer_seconds)
