"""The four dashboards: what a person who runs a federation wants to see. Metrics: docs/metrics.md."""

from __future__ import annotations

from typing import Final

from protofleet.deploy.dashboards.federation import federation
from protofleet.deploy.dashboards.fleet import fleet
from protofleet.deploy.dashboards.security import security
from protofleet.deploy.dashboards.traffic import traffic

PAGES: Final = {"federation": federation, "fleet": fleet, "bytes": traffic, "security": security}
