"""What a host can be to a federation, and where its files, its user and its service are there.

Each role of a host has folders of its own, so that one machine may bear several.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    user: str  # that the service runs as
    label: str  # of its folders below /opt, /etc, /var/lib and /run

    @property
    def top(self) -> str:
        return f"/opt/{self.label}"

    @property
    def etc(self) -> str:
        return f"/etc/{self.label}"

    @property
    def home(self) -> str:
        return f"/var/lib/{self.label}"

    @property
    def shown(self) -> str:
        return f"/run/{self.label}"

    @property
    def keys(self) -> Path:
        return Path(self.home) / "keys"

    @property
    def settings(self) -> str:
        return f"{self.etc}/{self.name}.settings"

    @property
    def service(self) -> str:
        return f"protofleet-{self.name}.service"

    def script_head(self, python: str) -> str:
        """What `facts.sh` and `remote.sh` begin with."""
        values = {
            "role": self.name, "top": self.top, "etc": self.etc, "home": self.home, "shown": self.shown,
            "keys": str(self.keys), "settings": self.settings, "user": self.user, "name": self.service,
            "unit": f"/etc/systemd/system/{self.service}", "python": python,
        }  # fmt: skip
        return "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())


DEVICE: Final = Role("device", "protofleet", "protofleet")
