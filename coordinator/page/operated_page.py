"""The page with its logins and its commands.

The command line asks for a code on the control socket, so only users who may send commands there can log in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from protofleet.coordinator.page.page_address import PageAddress
from protofleet.runtime.control_socket import Handler

PAGE: Final = "page"  # The request on the control socket for the address of the page with a code.


class OperatedPage:
    def __init__(
        self, address: PageAddress, commands: Handler, has_run: Callable[[str], bool] = lambda run: True
    ) -> None:
        """Set up the page; `commands` carries out the commands of operators, on the runs of `has_run`."""
        self.address, self.commands, self.access = address, commands, address.access()
        self._has_run = has_run

    def handle(self, user: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a request on the control socket: make a code, or carry out a command."""
        if request.get("verb") != PAGE:
            return self.commands(user, request)
        if not self.address.port:
            return {
                "verdict": "refused",
                "words": "there is no page; set page_port, or start the run with --page",
            }
        run = str(request.get("run", ""))
        if run and not self._has_run(run):
            return {
                "verdict": "refused",
                "words": f"the queue has no run {run}; `protofleet runs` lists the runs",
            }
        shown = f"&run={quote(run)}" if run else ""
        url = f"{self.address.url(self.access)}#c={self.access.logins.new_code(user)}{shown}"
        return {"verdict": "done", "words": url, "url": url}
