"""python -m tools.pages: write all pages and tables that are generated from the code."""

from __future__ import annotations

from tools.pages import (
    alerts,
    arrays,
    bounds,
    codec_figures,
    limits,
    methods,
    metrics,
    reasons,
    security_limits,
    stages,
)

for page in (bounds, methods, metrics):
    page.PAGE.write_text(page.generate(), encoding="utf-8")
for page in (alerts, arrays, codec_figures, limits, reasons, security_limits, stages):
    page.PAGE.write_text(page.generate(page.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
