"""The page with its logins and its commands.

The command line asks for a code on the control socket, so only users who may send commands there can log in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protofleet.coordinator.page.page_address import PageAddress
from protofleet.runtime.control_socket import Handler

PAGE: Final = "page"  # The request on the control socket for the address of the page with a code.


class OperatedPage:
    def __init__(self, address: PageAddress, commands: Handler) -> None:
        """Set up the page; `commands` carries out the commands of operators."""
        self.address, self.commands, self.access = address, commands, address.access()

    def handle(self, user: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a request on the control socket: make a code, or carry out a command."""
        if request.get("verb") != PAGE:
            return self.commands(user, request)
        if not self.address.port:
            return {
                "verdict": "refused",
                "words": "this run has no page; set page_port, or start it with --page",
            }
        url = f"{self.address.url(self.access)}#c={self.access.logins.new_code(user)}"
        return {"verdict": "done", "words": url, "url": url}
