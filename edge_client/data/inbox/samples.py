"""The store of the inbox's decoded samples. The key of a sample is the hash of its file in the inbox.

Because of the store, no file is decoded twice, and a round can be repeated after files were removed from the inbox.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.scaling import Values
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.storage.disk import Disk

PIXELS, NUMBERS = b"u", b"f"
HEAD: Final = 33  # bytes before the values: one for the kind of the values, and 32 for their SHA-256


@dataclass(frozen=True)
class InboxSamples:
    folder: Path
    shape: InputShape
    disk: Disk

    def has(self, sha256: bytes) -> bool:
        return self.load(sha256) is not None

    def keep(self, sha256: bytes, values: Values) -> None:
        body = values.tobytes()
        kind = PIXELS if values.dtype == np.uint8 else NUMBERS
        self.disk.make(self.folder)
        self.disk.replace(self._path(sha256), kind + hashlib.sha256(body).digest() + body)

    def load(self, sha256: bytes) -> Values | None:
        """Return the values of a sample, [*shape]; None if the sample is missing, damaged or of another shape."""
        try:
            text = self._path(sha256).read_bytes()
        except OSError:
            return None
        dtype = np.uint8 if text[:1] == PIXELS else np.float32
        body = text[HEAD:]
        if len(body) != self.shape.numbers * np.dtype(dtype).itemsize:
            return None
        if hashlib.sha256(body).digest() != text[1:HEAD]:
            return None
        return np.frombuffer(body, dtype).reshape(self.shape.axes)

    def keep_only(self, needed: Collection[bytes]) -> None:
        names = {sha256.hex() for sha256 in needed}
        with contextlib.suppress(OSError):
            for path in list(self.folder.iterdir()):
                if path.name not in names:
                    self.disk.remove(path)

    def _path(self, sha256: bytes) -> Path:
        return self.folder / sha256.hex()
