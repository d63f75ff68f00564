"""Load the settings of a coordinator from plain TOML, or from TOML that the federation's root has signed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.method_settings import Layer, require_own_settings
from protofleet.coordinator.service_settings import ServiceSettings, is_service
from protofleet.edge_client.host.loaded_settings import signed_settings
from protofleet.methods.plugins.paths import seen_from
from protofleet.protocol.security.statements import StatementError, StatementFault
from protofleet.protocol.settings.reader import (
    SettingsError,
    Table,
    decode_file,
    override,
    parse_toml,
    read_toml,
)
from protofleet.protocol.wire.names import COORDINATOR


@dataclass(frozen=True, slots=True)
class LoadedCoordinatorSettings:
    settings: CoordinatorSettings
    version: int = 0  # The version of signed settings. It is 0 if the settings are not signed.
    # The settings of a coordinator that conducts submitted runs. Then the run in `settings` is never conducted.
    service: ServiceSettings | None = None


def load_settings(path: Path, enrolled: str, changes: Sequence[str]) -> LoadedCoordinatorSettings:
    """Load a coordinator's settings; raise SettingsError or StatementError if they are wrong."""
    signed = signed_settings(path, enrolled)
    if signed is None:
        plain = seen_from(read_toml(path), path.parent)
        if is_service(whole := override(plain, changes)):
            service = _service(path, whole)
            return LoadedCoordinatorSettings(service.own, service=service)
        require_own_settings([Layer(str(path), plain, path)], path, changes)
        return LoadedCoordinatorSettings(decode_file(CoordinatorSettings, path, plain, changes))
    said = seen_from(parse_toml(signed.text.encode(), str(path)), path.parent)
    require_own_settings([Layer(str(path), said)], path, changes)
    table = override(said, changes) | {"enrolled": enrolled}
    made = _service(path, table) if is_service(table) else None
    settings = made.own if made else decode_file(CoordinatorSettings, path, table)
    if (settings.federation, COORDINATOR) != (signed.federation, signed.name):
        made_out = f"{path} is signed for {signed.name} in {signed.federation}"
        problem = f"{made_out}, but not for the coordinator of {settings.federation}"
        raise StatementError(StatementFault.WRONG_NAME, problem)
    return LoadedCoordinatorSettings(settings, signed.version, made)


def _service(path: Path, table: Table) -> ServiceSettings:
    try:
        return ServiceSettings.of(table)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
