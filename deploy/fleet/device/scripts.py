"""Put together the two scripts that run on a host.

The first script gathers the facts of the host. The second script has the steps of a deployment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.device.roles import DEVICE, Role

SCRIPTS: Final = Path(__file__).parent
ANSWERS_SCRIPT: Final = (SCRIPTS / "answers.sh").read_text()
FACTS_SCRIPT: Final = (SCRIPTS / "facts.sh").read_text()
# Each step sends the program that verifies the shipped files, so that no file on the host can replace the program.
REMOTE_SCRIPT: Final = (
    f"verifier() {{ cat <<'END_OF_VERIFIER'\n{(SCRIPTS / 'verify.py').read_text()}END_OF_VERIFIER\n}}\n"
    f"{(SCRIPTS / 'remote.sh').read_text()}"
)


@dataclass(frozen=True, slots=True)
class HostRole:
    """The role of a host, and the values that the scripts need for this host."""

    role: Role = DEVICE
    python: str = "python3"
    # The address of the service's health check; "" for a device, which has a status file.
    endpoint: str = ""
    models: str = ""  # The folder of the model versions that a device serves; "" if the host serves none.

    @property
    def steps(self) -> str:
        """Return the script whose functions are the steps of a deployment."""
        return self._head + REMOTE_SCRIPT

    @property
    def facts(self) -> str:
        return self._head + FACTS_SCRIPT

    @property
    def _head(self) -> str:
        return self.role.script_head(self.python, self.endpoint, self.models) + ANSWERS_SCRIPT
