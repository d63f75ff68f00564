"""Print the state of torch, of the certificate and of the broker's connection as key=value lines.

The interpreter of the installed release runs this module on a host.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from protofleet.deploy.fleet.device.roles import DEVICE, ROLES
from protofleet.protocol.wire.names import COORDINATOR

if TYPE_CHECKING:
    from protofleet.protocol.transport.address import BrokerAddress

KEY_FOLDER: Final = DEVICE.keys
SETTINGS_FILE: Final = Path(DEVICE.settings)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["self"]:
            return self_test()
        case ["settings", path]:
            return check_settings(Path(path))
        case ["settings", path, "coordinator"]:
            return check_coordinator_settings(Path(path))
        case _:
            print_torch()
            if COORDINATOR in arguments:
                print_enrolment("connected" in arguments, ROLES[COORDINATOR].keys, coordinator_broker)
            else:
                print_enrolment("connected" in arguments, KEY_FOLDER, device_broker)
    return 0


def self_test() -> int:
    """Import all modules of a device and multiply a matrix; return 1 if the product is wrong."""
    import torch

    from protofleet import edge_client, methods, protocol, runtime

    for package in (protocol, runtime, methods, edge_client):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    importlib.import_module("protofleet.cli.main")
    if torch.equal(torch.eye(3) @ torch.ones(3), torch.ones(3)):
        return 0
    print("torch computes a wrong product of a matrix and a vector", file=sys.stderr)
    return 1


def check_settings(path: Path) -> int:
    from protofleet.edge_client.host.loaded_settings import verified_settings

    return _problem(lambda: verified_settings(path, str(KEY_FOLDER), ()))


def check_coordinator_settings(path: Path) -> int:
    from protofleet.coordinator.spool.index import check_run
    from protofleet.deploy.fleet.device.coordinator_settings import load_settings

    def read() -> None:
        loaded = load_settings(path, str(ROLES[COORDINATOR].keys), ())
        if loaded.service is not None:
            return  # The settings name no run, so they can be different from those of no run.
        settings = loaded.settings
        folder = Path(settings.folder) / settings.name / "coordinator"
        check_run(folder, settings.name, settings.plan().encode().decode())

    return _problem(read)


def _problem(read: Callable[[], object]) -> int:
    from protofleet.coordinator.spool.index import RunMismatchError
    from protofleet.protocol.security.statements import StatementError
    from protofleet.protocol.settings.reader import SettingsError

    try:
        read()
    except (RunMismatchError, SettingsError, StatementError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def device_broker() -> BrokerAddress | None:
    from protofleet.edge_client.host.loaded_settings import verified_settings

    if not SETTINGS_FILE.exists():
        return None
    return verified_settings(SETTINGS_FILE, str(KEY_FOLDER), ()).settings.broker


def coordinator_broker() -> BrokerAddress | None:
    from protofleet.deploy.fleet.device.coordinator_settings import load_settings

    role = ROLES[COORDINATOR]
    if not Path(role.settings).exists():
        return None
    return load_settings(Path(role.settings), str(role.keys), ()).settings.broker


def print_torch() -> None:
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a vendor's torch fails in many ways, and each is reported
        print(f"cuda=no\ntorch_problem={type(error).__name__}: {error}")
        return
    print(f"torch={torch.__version__}\ncuda={'yes' if torch.cuda.is_available() else 'no'}")
    version = torch.version
    build = f"cuda {version.cuda}" if version.cuda else f"rocm {version.hip}" if version.hip else "cpu"
    print(f"torch_build={build}\ntorch_bytes={torch_bytes(Path(torch.__file__).parent)}")


def torch_bytes(folder: Path) -> int:
    """Return how many bytes torch takes on the disk, including the packages that a build for a GPU loads."""
    parts = [folder, *(folder.parent / name for name in ("nvidia", "triton"))]
    files = (Path(where) / name for part in parts for where, _, names in os.walk(part) for name in names)
    return sum(path.lstat().st_size for path in files)


def print_enrolment(connected: bool, keys: Path, broker_of: Callable[[], BrokerAddress | None]) -> None:
    """Print when the certificate expires, and whether the broker accepts the certificate.

    If `connected` is true, the service is connected to the broker, and this function makes no connection. The
    broker would end the service's connection when a second client with the same name connects.
    """
    from cryptography import x509

    from protofleet.protocol.security.enrolment import CURRENT, TLS_CERT
    from protofleet.protocol.security.statements import StatementError
    from protofleet.protocol.settings.reader import SettingsError
    from protofleet.protocol.transport.address import preflight

    cert = keys / CURRENT / TLS_CERT
    if cert.exists():
        until = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
        print(f"cert_until={int(until.timestamp())}")
    if connected:
        print("broker=ok")
    elif cert.exists():
        try:
            address = broker_of()
            if address is None:
                return
            result = preflight(address) or "ok"
        except (SettingsError, StatementError) as error:
            result = f"the installed settings are not accepted: {error}"
        print(f"broker={result}".replace("\n", " "))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
