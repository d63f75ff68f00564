"""List the four dashboards for operators of a federation. docs/metrics.md describes the metrics."""

from __future__ import annotations

from typing import Final

from protofleet.deploy.monitoring.federation import federation
from protofleet.deploy.monitoring.fleet import fleet
from protofleet.deploy.monitoring.security import security
from protofleet.deploy.monitoring.traffic import traffic

DASHBOARDS: Final = {"federation": federation, "fleet": fleet, "bytes": traffic, "security": security}
