"""The four dashboards: what a person who runs a federation wants to see. Metrics: docs/metrics.md."""

from __future__ import annotations

from typing import Final

from deploy.dashboards.federation import federation
from deploy.dashboards.fleet import fleet
from deploy.dashboards.security import security
from deploy.dashboards.traffic import traffic

PAGES: Final = {"federation": federation, "fleet": fleet, "bytes": traffic, "security": security}
