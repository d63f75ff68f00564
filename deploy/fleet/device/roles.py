"""What a host can be to a federation, and where its files, its user and its service are there.

Each role of a host has folders of its own, so that one machine may bear several.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.protocol.wire.names import COORDINATOR

BROKER: Final = "broker"


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
        """Where the service finds its keys. The broker's are not made on its host, and only root may change them."""
        return Path(self.etc if self.name == BROKER else self.home) / "keys"

    @property
    def runs_our_release(self) -> bool:
        """Otherwise it runs a program of the host's packages."""
        return self.name != BROKER

    @property
    def settings(self) -> str:
        return f"{self.etc}/{self.name}.settings"

    @property
    def service(self) -> str:
        return f"protofleet-{self.name}.service"

    def script_head(self, python: str, endpoint: str, models: str) -> str:
        """What `facts.sh` and `remote.sh` begin with. `endpoint`: where the service is asked how it is; `models`:
        where a device keeps the versions that it serves."""
        values = {
            "role": self.name, "top": self.top, "etc": self.etc, "home": self.home, "shown": self.shown,
            "keys": str(self.keys), "settings": self.settings, "user": self.user, "name": self.service,
            "unit": f"/etc/systemd/system/{self.service}", "python": python,
            "endpoint": endpoint, "models": models,
        }  # fmt: skip
        return "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())


DEVICE: Final = Role("device", "protofleet", "protofleet")
ROLES: Final = {
    role.name: role
    for role in (
        Role(BROKER, "protofleet-broker", "protofleet-broker"),
        Role(COORDINATOR, "protofleet-coordinator", "protofleet-coordinator"),
        DEVICE,
    )
}  # in the order in which they are deployed: who is asked comes before who asks
# The release of a host that runs none of ours.
HOST_PACKAGES: Final = "0"
