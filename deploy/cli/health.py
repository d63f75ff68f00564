"""`protofleet health`: asks the process that was started with these settings for its health."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from protofleet.protocol.settings.reader import SettingsError, decode, read_toml
from protofleet.runtime.metrics_page import LOOPBACK, Endpoint

SECONDS: Final = 5.0


def health(settings: Path) -> tuple[bool, str]:
    """Whether all checks pass, and one line for each."""
    url = endpoint(settings).url("/health")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=SECONDS) as answer:
            checks = json.load(answer)
    except urllib.error.HTTPError as error:  # 503: a check fails
        if error.code != 503:
            return False, f"FAIL process: something else answers on {url} (HTTP {error.code})"
        checks = json.load(error)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return False, f"FAIL process: nothing answers on {url} ({reason}); is it running?"
    return not any(checks.values()), format_checks(checks)


def endpoint(settings: Path) -> Endpoint:
    """Of a settings file that may be a coordinator's or a device's."""
    table = read_toml(settings)
    port, host = table.get("metrics_port", 0), table.get("metrics_host", LOOPBACK)
    if not port:
        raise SettingsError(f"{settings} has no metrics_port, which also serves health; set one")
    return decode(Endpoint, {"host": host, "port": port}, str(settings))


def format_checks(checks: Mapping[str, str]) -> str:
    lines = [f"FAIL {name}: {problem}" if problem else f"PASS {name}" for name, problem in checks.items()]
    return "\n".join(lines)
