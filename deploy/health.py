"""`protofleet health`: asks the process that runs with these settings how it is."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from protocol.settings import SettingsError, read_toml

SECONDS: Final = 5.0


def health(settings: Path) -> tuple[bool, str]:
    """Whether all is well, and a line a check."""
    port = read_toml(settings).get("metrics_port", 0)
    if not port:
        raise SettingsError(f"{settings} has no metrics_port, and health is asked for there; set one")
    url = f"http://127.0.0.1:{port}/health"
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:  # 503 says what is wrong
        if error.code != 503:
            return False, f"FAIL process: something else answers on {url} (HTTP {error.code})"
        found = json.load(error)
    except (OSError, ValueError) as error:
        told = getattr(error, "reason", error)
        return False, f"FAIL process: nothing answers on {url} ({told}); is it running?"
    lines = [f"FAIL {name}: {problem}" if problem else f"PASS {name}" for name, problem in found.items()]
    return not any(found.values()), "\n".join(lines)
