"""Implement `protofleet health`: read the health of the process that was started with these settings."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from protofleet.protocol.settings.reader import SettingsError, decode, read_toml
from protofleet.runtime.metrics_page import LOOPBACK, Endpoint

SECONDS: Final = 5.0


def health(settings: Path) -> dict[str, str]:
    """Return the problem of each check by the check's name; "" if the check passes."""
    url = endpoint(settings).url("/health")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=SECONDS) as answer:
            checks = json.load(answer)
    except urllib.error.HTTPError as error:  # The process answers with code 503 if a check fails.
        if error.code != 503:
            return {"process": f"something else answers on {url} (HTTP {error.code})"}
        checks = json.load(error)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return {"process": f"nothing answers on {url} ({reason}); is it running?"}
    if not isinstance(checks, dict):
        return {"process": f"something else answers on {url}"}
    return {str(name): str(problem or "") for name, problem in checks.items()}


def endpoint(settings: Path) -> Endpoint:
    """Return the endpoint in the settings file of a coordinator or a device."""
    table = read_toml(settings)
    port, host = table.get("metrics_port", 0), table.get("metrics_host", LOOPBACK)
    if not port:
        raise SettingsError(
            f"{settings} has no metrics_port; set metrics_port, because this port also serves the health"
        )
    return decode(Endpoint, {"host": host, "port": port}, str(settings))


def line_of(name: str, problem: str) -> str:
    return f"FAIL {name}: {problem}" if problem else f"PASS {name}"
