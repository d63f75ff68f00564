"""`protofleet health`: asks the process that runs with these settings how it is."""

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
    """Whether all is well, and a line a check."""
    url = endpoint(settings).url("/health")
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with directly.open(url, timeout=SECONDS) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:  # 503 says what is wrong
        if error.code != 503:
            return False, f"FAIL process: something else answers on {url} (HTTP {error.code})"
        found = json.load(error)
    except (OSError, ValueError) as error:
        told = getattr(error, "reason", error)
        return False, f"FAIL process: nothing answers on {url} ({told}); is it running?"
    return not any(found.values()), lines_of(found)


def endpoint(settings: Path) -> Endpoint:
    """Of a settings file that may be a coordinator's or a device's."""
    table = read_toml(settings)
    port, host = table.get("metrics_port", 0), table.get("metrics_host", LOOPBACK)
    if not port:
        raise SettingsError(f"{settings} has no metrics_port, and health is asked for there; set one")
    return decode(Endpoint, {"host": host, "port": port}, str(settings))


def lines_of(found: Mapping[str, str]) -> str:
    lines = [f"FAIL {name}: {problem}" if problem else f"PASS {name}" for name, problem in found.items()]
    return "\n".join(lines)
