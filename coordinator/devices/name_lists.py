"""The class names that devices have sent to this process, by their hash.

A device sends its class names once to each epoch, and their hash in all later hellos. A run that begins later would
know only the hash.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from protofleet.protocol.wire.class_names import Names, digest_of
from protofleet.protocol.wire.messages import Hello

MOST_LISTS: Final = 16  # Largest number of lists that are kept. The devices of a federation have a few lists.


class NameLists:
    def __init__(self) -> None:
        self._names: dict[bytes, Names] = {}  # The newest list is the last one.

    def completed(self, hello: Hello) -> Hello:
        """Return the hello with the class names of its hash, if any device has sent these names."""
        if not hello.names:
            known = self._names.get(hello.names_hash, ())
            return replace(hello, names=known, names_hash=b"") if known else hello
        digest = digest_of(hello.names)
        self._names.pop(digest, None)
        self._names[digest] = hello.names
        if len(self._names) > MOST_LISTS:
            del self._names[next(iter(self._names))]
        return hello
