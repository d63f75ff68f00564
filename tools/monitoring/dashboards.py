"""List the four dashboards for operators of a federation. docs/metrics.md describes the metrics."""

from __future__ import annotations

from typing import Final

from tools.monitoring.federation import federation
from tools.monitoring.fleet import fleet
from tools.monitoring.security import security
from tools.monitoring.traffic import traffic

DASHBOARDS: Final = {"federation": federation, "fleet": fleet, "bytes": traffic, "security": security}
