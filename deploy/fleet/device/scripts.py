"""The two scripts that run on a host, as they are sent there: what it is like, and the steps of a deployment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.device.roles import DEVICE, Role

SCRIPTS: Final = Path(__file__).parent
ANSWERS_SCRIPT: Final = (SCRIPTS / "answers.sh").read_text()
FACTS_SCRIPT: Final = (SCRIPTS / "facts.sh").read_text()
# The program that verifies what was shipped comes with each step, so that no file on the host can replace it.
REMOTE_SCRIPT: Final = (
    f"verifier() {{ cat <<'END_OF_VERIFIER'\n{(SCRIPTS / 'verify.py').read_text()}END_OF_VERIFIER\n}}\n"
    f"{(SCRIPTS / 'remote.sh').read_text()}"
)


@dataclass(frozen=True, slots=True)
class Place:
    """What a host is for, and the interpreter that is used there."""

    role: Role = DEVICE
    python: str = "python3"
    endpoint: str = ""  # where the service is asked how it is; of a device its status file says it
    models: str = ""  # folder of the versions that a device serves; empty: it serves none

    @property
    def steps(self) -> str:
        """The script whose functions are the steps of a deployment."""
        return self._head + REMOTE_SCRIPT

    @property
    def facts(self) -> str:
        return self._head + FACTS_SCRIPT

    @property
    def _head(self) -> str:
        return self.role.script_head(self.python, self.endpoint, self.models) + ANSWERS_SCRIPT
