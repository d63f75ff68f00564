"""The logins of a page: one-time codes, and the sessions for which a browser exchanges the codes.

Codes and sessions are only in memory, so they end with the process.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

CODE_SECONDS: Final = 300.0
SESSION_SECONDS: Final = 8 * 3600
MOST_CODES: Final = 16  # Largest number of codes that wait for their use; a further one replaces the oldest.
MOST_SESSIONS: Final = 64  # Largest number of sessions; a further one ends the oldest.


@dataclass(frozen=True, slots=True)
class Session:
    """A login of an operator.

    A browser sends the cookie also to other ports of the same host, so a command needs the key too. Only the scripts
    of the page can read the key.
    """

    operator: str
    cookie: str
    key: str
    until: float

    def has_key(self, key: str) -> bool:
        return secrets.compare_digest(self.key.encode(), key.encode())


class Logins:
    """The codes and the sessions. Any thread may call the methods."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._codes: dict[str, tuple[str, float]] = {}  # Code -> operator and end; the oldest code is first.
        self._sessions: dict[str, Session] = {}  # Cookie -> session; the oldest session is first.

    def new_code(self, operator: str) -> str:
        """Return a code with which a browser can log in once as this operator."""
        code = secrets.token_urlsafe(24)
        with self._lock:
            self._codes[code] = operator, self._clock() + CODE_SECONDS
            while len(self._codes) > MOST_CODES:
                del self._codes[next(iter(self._codes))]
        return code

    def exchange(self, code: str) -> Session | None:
        """Begin a session, and make the code invalid; return None if the code is not valid."""
        with self._lock:
            operator, until = self._codes.pop(code, ("", 0.0))
            now = self._clock()
            if not operator or now >= until:
                return None
            session = Session(
                operator, secrets.token_urlsafe(32), secrets.token_urlsafe(32), now + SESSION_SECONDS
            )
            self._sessions[session.cookie] = session
            while len(self._sessions) > MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        return session

    def session(self, cookie: str) -> Session | None:
        """Return the session of a cookie, or None if there is none or its time is over."""
        found = self._sessions.get(cookie)
        return found if found is not None and self._clock() < found.until else None
