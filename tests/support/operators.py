"""Operators of an enrolled federation on this machine."""

from __future__ import annotations

from pathlib import Path

from protofleet.federation.enrol.key_folder import expect_fingerprint, install, make_request
from protofleet.federation.enrol.lifecycle import approve, review_request
from protofleet.federation.enrol.local_federation import LocalFederation
from protofleet.protocol.security.operators import OPERATOR
from protofleet.protocol.settings.reader import write_toml
from protofleet.protocol.transport.address import BrokerAddress


def enrol_operator(
    fleet: LocalFederation, folder: Path, name: str, grants: set[str], broker: BrokerAddress
) -> Path:
    """Enrol an operator, and return the path of its settings."""
    authority, keys = fleet.authority(), folder / name
    _, data = make_request(keys, authority.federation, name, (), False, durable=False, part=OPERATOR)
    approval = approve(
        authority, review_request(authority, data, name, OPERATOR), grants=frozenset(grants)
    )  # fmt: skip
    install(keys, approval, expect_fingerprint(authority.fingerprint), authority.now(), durable=False)
    settings = folder / f"{name}.toml"
    settings.write_text(
        write_toml({"enrolled": str(keys), "broker": {"host": broker.host, "port": broker.port}})
    )
    return settings
