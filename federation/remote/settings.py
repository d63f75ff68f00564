"""The settings of an operator: where its keys are, and where the broker is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from protofleet.federation.enrol.local_federation import tls_files
from protofleet.protocol.security.envelope import seals
from protofleet.protocol.settings.reader import SettingsError, decode, parse_toml
from protofleet.protocol.transport.address import BrokerAddress


@dataclass(frozen=True)
class OperatorSettings:
    """The settings of an operator. Its name, its federation and its grants are in the files of `enrolled`."""

    enrolled: str = "keys"
    """Folder that `protofleet enrol install` has filled."""
    security: str = "sealed"
    """Protection of messages, `sealed` or `off`, which must be the same at the coordinator."""
    broker: BrokerAddress = field(default_factory=BrokerAddress)
    """Address of the broker; without `tls`, the files of `enrolled` are used."""

    def __post_init__(self) -> None:
        seals(self.security)


def load_operator_settings(path: Path) -> OperatorSettings:
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}; name the file with an operator's settings"
        raise SettingsError(f"{message} (enrolled, and host and port in [broker])") from None
    try:
        made = decode(OperatorSettings, parse_toml(data, str(path)))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    if made.broker.tls is None:
        made = replace(made, broker=replace(made.broker, tls=tls_files(Path(made.enrolled))))
    return made
