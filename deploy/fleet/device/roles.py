"""Define the roles that a host can have in a federation, with the paths, user and service of each.

Each role has folders of its own, so one machine can have several roles.
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
    user: str  # The user account under which the service runs.
    label: str  # The name of the role's folders in /opt, /etc, /var/lib and /run.

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
        """Return the folder in which the service finds its keys.

        The broker's keys are made on the operator's machine. On the broker's host, only root may change them.
        """
        return Path(self.etc if self.name == BROKER else self.home) / "keys"

    @property
    def runs_our_release(self) -> bool:
        """Return whether the service runs one of our releases.

        A broker runs Mosquitto from a package of its host, so deploy copies no release to this host.
        """
        return self.name != BROKER

    @property
    def settings(self) -> str:
        return f"{self.etc}/{self.name}.settings"

    @property
    def service(self) -> str:
        return f"protofleet-{self.name}.service"

    def script_head(self, python: str, endpoint: str, models: str) -> str:
        """Return the variables with which `facts.sh` and `remote.sh` begin.

        `endpoint` is the address of the service's health check. `models` is the folder in
        which a device keeps the versions that it serves.
        """
        values = {
            "role": self.name, "top": self.top, "etc": self.etc, "home": self.home, "shown": self.shown,
            "keys": str(self.keys), "settings": self.settings, "user": self.user, "name": self.service,
            "unit": f"/etc/systemd/system/{self.service}", "python": python,
            "endpoint": endpoint, "models": models,
        }  # fmt: skip
        return "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())


DEVICE: Final = Role("device", "protofleet", "protofleet")
# The order of a deployment: a server comes before its clients.
ROLES: Final = {
    role.name: role
    for role in (
        Role(BROKER, "protofleet-broker", "protofleet-broker"),
        Role(COORDINATOR, "protofleet-coordinator", "protofleet-coordinator"),
        DEVICE,
    )
}
# This value replaces the name of a release if a package of the operating system provides the host's service.
HOST_PACKAGES: Final = "0"
