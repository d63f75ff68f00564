"""Decide which requests may read a page, and which may send commands."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

from protofleet.runtime.live.logins import SESSION_SECONDS, Logins, Session
from protofleet.runtime.metrics_server import HttpRequest

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
KEY_HEADER: Final = "x-protofleet"


@dataclass(frozen=True, slots=True)
class PageAccess:
    """The names under which a page is known, its logins, and its certificate.

    A page of another site can make its name point to this machine, but the browser still sends the name of the
    site. So a request must name one of `names`.
    """

    port: int
    names: tuple[str, ...] = LOOPBACK_NAMES
    tls: ssl.SSLContext | None = None
    login_to_view: bool = False  # Without it, all who can connect may view the page.
    logins: Logins = field(default_factory=Logins)

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @property
    def hosts(self) -> list[str]:
        """Return the values of the header Host that are accepted; a browser leaves out the usual port."""
        usual = self.port == (80 if self.tls is None else 443)
        with_port = [f"{name}:{self.port}".lower() for name in self.names]
        return [*with_port, *([name.lower() for name in self.names] if usual else [])]

    def knows_host(self, request: HttpRequest) -> bool:
        return request.headers.get("host", "").lower() in self.hosts

    def is_same_origin(self, request: HttpRequest) -> bool:
        """Return whether a script of this page has sent the request; a browser sets these headers itself."""
        origin = f"{self.scheme}://{request.headers.get('host', '').lower()}"
        site = request.headers.get("sec-fetch-site", "same-origin")
        return request.headers.get("origin", "").lower() == origin and site == "same-origin"

    def session(self, request: HttpRequest) -> Session | None:
        """Return the session of the request's cookie."""
        for pair in request.headers.get("cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self._cookie_name:
                return self.logins.session(value)
        return None

    def may_view(self, request: HttpRequest) -> bool:
        return not self.login_to_view or self.session(request) is not None

    def may_command(self, request: HttpRequest) -> Session | None:
        """Return the session if the request has the session's cookie and key."""
        session = self.session(request)
        return session if session and session.has_key(request.headers.get(KEY_HEADER, "")) else None

    def set_cookie(self, session: Session) -> tuple[str, str]:
        """Return the header that gives the cookie of a session to a browser."""
        parts = [
            f"{self._cookie_name}={session.cookie}", "Path=/", f"Max-Age={SESSION_SECONDS}", "HttpOnly",
            "SameSite=Strict", *(["Secure"] if self.tls else []),
        ]  # fmt: skip
        return "Set-Cookie", "; ".join(parts)

    @property
    def _cookie_name(self) -> str:
        # Browsers send a cookie to all ports of a host, and two runs may have pages.
        return f"protofleet-{self.port}"
