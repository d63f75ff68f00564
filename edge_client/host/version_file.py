"""The file that stores the highest version of a signed file that a device has used; lower versions are refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protofleet.protocol.security.keyfiles import write_file


@dataclass(frozen=True, slots=True)
class VersionFile:
    path: Path

    def highest(self) -> int:
        """Return the highest version that was used; 0 if none was used yet."""
        text = self.path.read_text().strip() if self.path.exists() else ""
        return int(text) if text.isdigit() else 0

    def store(self, version: int) -> None:
        write_file(self.path, f"{version}\n".encode())
