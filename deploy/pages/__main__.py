"""python -m protofleet.deploy.pages: writes every page, and every table of a page, that comes from the code."""

from __future__ import annotations

from protofleet.deploy.pages import alerts, arrays, bounds, limits, metrics, reasons, security_limits

for whole in (bounds, metrics):
    whole.PAGE.write_text(whole.written(), encoding="utf-8")
for inside in (alerts, arrays, limits, reasons, security_limits):
    inside.PAGE.write_text(inside.written(inside.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
