"""Run a real Prometheus with the shipped settings and rules over processes of this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protofleet.federation.brokers.ports import free_port
from tests.tools.monitoring.rule_tests import RULES

PROGRAM = shutil.which("prometheus")
INTERVAL = 0.5  # seconds between two scrapes, in place of 5
PATIENCE = 60.0


class Prometheus:
    def __init__(self, folder: Path, coordinator: int, devices: Mapping[str, int]) -> None:
        """Start Prometheus; `devices` has the names of devices and their ports."""
        shutil.copytree(RULES.parent, folder)
        settings = (folder / "prometheus.yml").read_text()
        for shipped, here in (
            ("scrape_interval: 5s", f"scrape_interval: {INTERVAL * 1000:.0f}ms"),
            ("evaluation_interval: 15s", f"evaluation_interval: {INTERVAL * 1000:.0f}ms"),
            ("coordinator:9100", f"127.0.0.1:{coordinator}"),
        ):
            assert settings.count(shipped) == 1, shipped
            settings = settings.replace(shipped, here)
        (folder / "prometheus.yml").write_text(settings)
        targets = [{"targets": [f"127.0.0.1:{p}"], "labels": {"device": n}} for n, p in devices.items()]
        (folder / "targets").mkdir()
        (folder / "targets" / "devices.json").write_text(json.dumps(targets))
        self._folder, self._port, self.began = folder, free_port(), time.time()

    def __enter__(self) -> Prometheus:
        assert PROGRAM is not None
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                PROGRAM, f"--config.file={self._folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self.wait_until(self._answers, "Prometheus to answer")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _answers(self) -> bool:
        try:
            return bool(self.ask("query", query="vector(1)"))
        except OSError:
            assert self._process.poll() is None, (self._folder / "log").read_text()
            return False

    def ask(self, what: str, **given: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urllib.parse.urlencode(given)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def now(self, query: str) -> list[dict[str, Any]]:
        """Return each series with its `metric` and its `value`, which is a time and a text."""
        found: list[dict[str, Any]] = self.ask("query", query=query)["result"]
        return found

    def number(self, query: str) -> float:
        """Return the value of the one series, or NaN if there is none."""
        found = self.now(query)
        assert len(found) <= 1, f"{query}: {found}"
        return float(found[0]["value"][1]) if found else float("nan")

    def wait_for(self, query: str) -> None:
        """Wait until this query has a result."""
        self.wait_until(lambda: self.now(query), query)

    def wait_for_scrapes(self, seconds: float) -> None:
        """Wait until all targets have been scraped later than `seconds` from now."""
        self.wait_for(f"min(timestamp(up)) > {time.time() + seconds}")

    def wait_until(self, check: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not check():
            assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}"
            time.sleep(0.05)
