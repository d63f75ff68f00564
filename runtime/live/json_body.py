"""Read the body of a request: a JSON object of a limited size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from protofleet.runtime.metrics_server import HttpRequest

MOST_BODY: Final = 4096  # Largest number of bytes of a body.


class BodyError(ValueError):
    """The error for a body that is refused, with the status of the response."""

    def __init__(self, status: str, words: str) -> None:
        super().__init__(words)
        self.status = status


async def read_json(request: HttpRequest, reader: asyncio.StreamReader) -> Mapping[str, Any]:
    """Return the JSON object that follows the head of the request."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise BodyError("415 Unsupported Media Type", "the Content-Type must be application/json")
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdecimal()) or "transfer-encoding" in request.headers:
        raise BodyError("411 Length Required", "the request needs a Content-Length, and no Transfer-Encoding")
    if len(length) > 9 or int(length) > MOST_BODY:
        raise BodyError("413 Content Too Large", f"a body has at most {MOST_BODY} bytes")
    try:
        found = json.loads(await reader.readexactly(int(length)))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BodyError("400 Bad Request", "the body must be a JSON object")
    return found
