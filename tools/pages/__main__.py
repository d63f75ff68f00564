"""python -m tools.pages: write all pages and tables that are generated from the code."""

from __future__ import annotations

from tools.pages import (
    alerts,
    arrays,
    bounds,
    codec_figures,
    leakage_figures,
    limits,
    methods,
    metrics,
    newer_methods,
    one_message,
    other_features,
    reasons,
    security_limits,
    stages,
)

for page in (bounds, methods, metrics):
    page.PAGE.write_text(page.generate(), encoding="utf-8")
for page in (
    alerts, arrays, codec_figures, leakage_figures, limits, newer_methods, one_message, other_features, reasons,
    security_limits, stages,
):  # fmt: skip
    page.PAGE.write_text(page.generate(page.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
