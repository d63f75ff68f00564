"""Run on a device by its own interpreter: what only our program there can find out, as key=value lines."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.settings import KEY_FOLDER

SETTINGS_FILE: Final = Path("/etc/protofleet/device.settings")


def main(arguments: list[str]) -> int:
    match arguments:
        case ["self"]:
            return self_test()
        case ["settings", path]:
            return check_settings(Path(path))
        case _:
            print_torch()
            print_enrolment("connected" in arguments)
    return 0


def self_test() -> int:
    """Everything imports, and a matrix is multiplied."""
    import torch

    from protofleet import edge_client, methods, protocol, runtime

    for package in (protocol, runtime, methods, edge_client):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    importlib.import_module("protofleet.deploy.cli.main")
    if torch.equal(torch.eye(3) @ torch.ones(3), torch.ones(3)):
        return 0
    print("torch multiplies wrongly", file=sys.stderr)
    return 1


def check_settings(path: Path) -> int:
    from protofleet.edge_client.host.loaded_settings import verified_settings
    from protofleet.protocol.security.statements import StatementError
    from protofleet.protocol.settings.reader import SettingsError

    try:
        verified_settings(path, str(KEY_FOLDER), ())
    except (SettingsError, StatementError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def print_torch() -> None:
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a vendor's torch fails in many ways, and each is a fact
        print(f"cuda=no\ntorch_problem={type(error).__name__}: {error}")
        return
    print(f"torch={torch.__version__}\ncuda={'yes' if torch.cuda.is_available() else 'no'}")


def print_enrolment(connected: bool) -> None:
    """Does not connect where the device is connected: the broker would give its session to us."""
    from cryptography import x509

    from protofleet.edge_client.host.loaded_settings import verified_settings
    from protofleet.protocol.security.enrolment import CURRENT, TLS_CERT
    from protofleet.protocol.security.statements import StatementError
    from protofleet.protocol.settings.reader import SettingsError
    from protofleet.protocol.transport.address import preflight

    cert = KEY_FOLDER / CURRENT / TLS_CERT
    if cert.exists():
        until = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
        print(f"cert_until={int(until.timestamp())}")
    if connected:
        print("broker=ok")
    elif SETTINGS_FILE.exists() and cert.exists():
        try:
            result = preflight(verified_settings(SETTINGS_FILE, str(KEY_FOLDER), ()).settings.broker) or "ok"
        except (SettingsError, StatementError) as error:
            result = f"the installed settings are not accepted: {error}"
        print(f"broker={result}".replace("\n", " "))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
