"""A Chromium without a window that a test drives through the DevTools protocol, on pipes and not on a port."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.browser import CHROMIUM

PATIENCE = 60.0  # Seconds; Chromium needs about one on an idle machine.


class Chromium:
    """A browser with one page. `call` sends a command of the DevTools protocol to this page."""

    def __init__(self, folder: Path, *options: str) -> None:
        said, told = os.pipe(), os.pipe()
        # Chromium reads from 3 and writes to 4, so its ends of the pipes must first have other numbers.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (told[0], said[1])]
        command = [
            "bash", "-c", f'exec 3<&{ends[0]} 4>&{ends[1]}; exec "$@"', "bash", str(CHROMIUM), "--headless",
            "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder / 'chromium'}",
            *options, "about:blank",
        ]  # fmt: skip
        log = (folder / "chromium.log").open("wb")
        self._process = subprocess.Popen(command, pass_fds=ends, stderr=log, stdout=log)
        for end in (told[0], said[1], *ends):
            os.close(end)
        self._reads, self._writes, self._rest, self._numbers = said[0], told[1], b"", itertools.count(1)
        self.errors: list[str] = []  # Errors and warnings that the page has written on its console.
        (target,) = [one for one in self._ask("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        found = self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._reads)
        os.close(self._writes)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._ask(method, self._session, **parameters)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_until(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Wait until the expression is true in the page, and return its value."""
        deadline = time.monotonic() + seconds
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline, (
                f"{expression} after {seconds} s; {self.value('document.body.innerText')}"
            )
            time.sleep(0.05)
        return found

    def look_like(self, width: int, dark: bool) -> None:
        """Give the page this width, and the light or the dark colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def accessible(self) -> list[dict[str, Any]]:
        """Return the nodes that a screen reader gets from the page: their role, name and level."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            {
                "role": node["role"]["value"],
                "name": node.get("name", {}).get("value", ""),
                **{one["name"]: one["value"].get("value") for one in node.get("properties", [])},
            }
            for node in nodes
            if not node["ignored"]
        ]

    def press(self, key: str, code: int) -> None:
        """Press a key in the page, such as Enter, whose code is 13."""
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path) -> None:
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _ask(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": parameters}
        if session:
            asked["sessionId"] = session
        os.write(self._writes, json.dumps(asked).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            told = self._next(deadline)
            if told.get("id") == number:
                assert "error" not in told, told["error"]
                return dict(told["result"])
            self._note(told)

    def _note(self, told: dict[str, Any]) -> None:
        match told:
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.errors.append(details["exception"].get("description", details["text"]))
            case {
                "method": "Log.entryAdded",
                "params": {"entry": {"level": "error" | "warning", "text": str(text)}},
            }:
                self.errors.append(text)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reads], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium has not answered in {PATIENCE} s"
            self._rest += os.read(self._reads, 1 << 16)
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))
