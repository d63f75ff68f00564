"""Run the sub-commands of `protofleet enrol`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from cryptography import x509

from protofleet.federation.brokers.mosquitto import queues_are_full
from protofleet.federation.enrol import disconnect, ejabberd_files, key_folder, lifecycle
from protofleet.federation.enrol.approval import APPROVAL, unverified_approval, unverified_roots
from protofleet.federation.enrol.authority import DAY, Authority, make_authority
from protofleet.federation.enrol.certificates import host_names
from protofleet.federation.enrol.local_federation import (
    LOOPBACK,
    YEARS,
    LocalFederation,
    enrol,
    enrol_federation,
    tls_files,
)
from protofleet.federation.enrol.mosquitto_conf import given_flags, listener_to_write, write_conf
from protofleet.federation.enrol.register import RegisterEntry
from protofleet.federation.enrol.request import REQUEST, part_by_name
from protofleet.protocol.security.enrolment import CURRENT, load_trust
from protofleet.protocol.security.operators import GRANTS, OPERATOR, shown_grants
from protofleet.protocol.security.records import RECORD, day
from protofleet.protocol.security.statements import (
    StatementError,
    StatementFault,
    fingerprint,
    read_armoured,
    same_fingerprint,
)
from protofleet.protocol.settings.reader import SettingsError, encode
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR, RESERVED_RULE, is_reserved, valid_device, valid_name
from protofleet.runtime.command.listing import Listing

Options = argparse.Namespace
EJABBERD: Final = "ejabberd"
SOURCES: Final = {
    REQUEST: "`protofleet enrol request NAME` writes a request, on the machine of the device, coordinator or broker",
    APPROVAL: "`protofleet enrol approve` writes an approval into the root's folder approvals; the operator sends it",
}


def make_root(o: Options) -> int:
    authority = make_authority(o.folder, _name(o.federation), o.years)
    print(
        f"root of {authority.federation}: {o.folder} (keep this folder offline, and keep a copy in another place)"
    )
    print(f"fingerprint: {authority.fingerprint} (the owner of each device compares this fingerprint once)")
    return 0


def statement_in(kind: str, path: Path) -> bytes:
    if not path.exists():
        raise SettingsError(f"there is no file {path}; give the path of the {kind}: {SOURCES[kind]}")
    return read_armoured(kind, path)


def request(o: Options) -> int:
    federation, name = _name(o.federation), _name(o.name)
    hosts, part = tuple(o.host), o.part or part_by_name(name, tuple(o.host))
    if part_by_name(name, hosts, part) != part:
        raise SettingsError(
            f"{name} cannot be enrolled as {part}: only the coordinator has the name {COORDINATOR!r}, and a broker, "
            "and no other party, has --host"
        )
    if is_reserved(name) and not (o.folder / CURRENT).exists():
        raise SettingsError(f"{name} cannot be enrolled: {RESERVED_RULE}")
    request, data = key_folder.make_request(o.folder, federation, name, hosts, o.new_keys, part=part)
    path = o.folder / key_folder.PENDING / REQUEST
    print(f"request of the {request.part} {request.name}: {path} (send it to the operator)")
    print(f"fingerprint: {fingerprint(data)} (give it to the operator on another channel, such as by phone)")
    return 0


def approve(o: Options) -> int:
    authority = Authority(o.root)
    grants, part = grants_in(o.grants), o.part or (OPERATOR if o.grants else "device")
    if bool(grants) != (part == OPERATOR):
        raise SettingsError(
            f"an operator needs --grants, and no other party has grants; there are {', '.join(GRANTS)}"
        )
    reviewed = lifecycle.review_request(authority, statement_in(REQUEST, o.request), o.name, part)
    r = reviewed.request
    hosts = f" for {', '.join(r.hosts)}" if r.hosts else ""
    with_grants = f", with the grants {shown_grants(grants)}" if grants else ""
    print(f"the {r.part} {r.name}{hosts} asks to join {r.federation}{with_grants}")
    if not _confirmed(o, reviewed.fingerprint, "request"):
        raise StatementError(StatementFault.WRONG_KEYS, "not approved: the fingerprint was not confirmed")
    denied = r.name in lifecycle.revoked_names(authority, authority.now())
    lifecycle.approve(authority, reviewed, o.days, o.replace, grants)
    if denied:
        print(
            f"{r.name} was revoked before, and the brokers deny this name until you have installed their new rules:"
        )
        _print_broker_approvals(o, authority)
    if r.part in ("device", OPERATOR) and not (o.root / "records" / f"{COORDINATOR}.record").exists():
        print(
            f"this approval has no coordinator's record: enrol the coordinator, and then run `enrol renew {r.name}`"
        )
    if r.part == "device" and queues_are_full(enrolled := lifecycle.enrolled_devices(authority)):
        print(
            f"{enrolled} devices are enrolled. If a broker's mosquitto.conf has the line `Queues for "
            f"{enrolled - 1} devices`, the queues are too large: install the approval of this broker again with "
            f"--devices {2 * (enrolled - 1)}"
        )
    _print_approval(authority, r.name)
    return 0


def install(o: Options) -> int:
    data = statement_in(APPROVAL, o.approval)
    claimed = unverified_approval(data)
    is_ejabberd = ejabberd_files.is_ejabberd(o.folder)
    if claimed.part == "broker" and not is_ejabberd:
        listener_to_write(o, o.folder)
    elif is_ejabberd and (given := given_flags(o)):
        raise SettingsError(
            f"{given} can be used only for a mosquitto.conf, but {o.folder} has an ejabberd.yml; edit this file"
        )
    elif given := given_flags(o):
        raise SettingsError(
            f"{given} can be used only for a broker's mosquitto.conf, but {claimed.name} is a {claimed.part}; set "
            "host and port in the table [broker] of its settings"
        )
    _check_fingerprint(o, data)
    installation = key_folder.install(o.folder, data, lambda seen: _confirmed(o, seen, "root"), time.time())
    approval = installation.approval
    print(
        f"{approval.name} is enrolled in {approval.federation} until {installation.until}: {installation.folder}"
    )
    if approval.part == "broker" and is_ejabberd:
        print(
            "an approval has no rules for ejabberd; `protofleet enrol broker --kind ejabberd` writes them again"
        )
    elif approval.part == "broker":
        write_conf(o, o.folder)
    else:
        _print_tls_settings(o.folder)
    return 0


def coordinator(o: Options) -> int:
    authority = Authority(o.root)
    _enrol_here(authority, o.folder, COORDINATOR, o.days)
    _print_tls_settings(o.folder)
    return 0


def broker(o: Options) -> int:
    authority = Authority(o.root)
    if o.kind == EJABBERD:
        return _ejabberd_node(o, authority)
    listener_to_write(o, o.folder)
    _enrol_here(authority, o.folder, _name(o.name), o.days, tuple(o.host))
    write_conf(o, o.folder)
    return 0


def _ejabberd_node(o: Options, authority: Authority) -> int:
    """Enrol a node and write its files; for a node that is enrolled, write its rules again."""
    ejabberd_files.demand_files(o, authority, o.folder)
    if (o.folder / CURRENT).exists():
        disconnect.broker_name(authority, o.folder)  # This raises an error for the keys of another party.
    else:
        _enrol_here(authority, o.folder, _name(o.name), o.days, tuple(o.host))
    ejabberd_files.write_files(o, authority, o.folder)
    return 0


def fleet(o: Options) -> int:
    names = [*o.names, *(f"device-{i + 1:0{len(str(o.count))}}" for i in range(o.count))]
    for name in names:
        _name(name, valid_device)
    if not names:
        raise SettingsError("no device is named; give the names of the devices, or --count")
    federation = _federation_of(o)
    listener_to_write(o, LocalFederation(o.folder).folder_of("broker"))
    local = enrol_federation(o.folder, _name(federation), names, (*LOOPBACK, *o.host), o.days)
    print(f"{len(names)} devices, a coordinator and a broker of {federation}: {o.folder}")
    write_conf(o, local.folder_of("broker"), lifecycle.enrolled_devices(local.authority()))
    return 0


def _federation_of(o: Options) -> str:
    """Return the federation of the fleet in the folder, or the chosen name if there is no fleet yet.

    If there is a fleet, --federation and --host must agree with it; otherwise SettingsError is raised. The host names
    in the certificate of the fleet's broker cannot be changed.
    """
    local = LocalFederation(o.folder)
    if not local.root.exists():
        return o.federation or "protofleet"
    found = local.authority().federation
    if o.federation not in (None, found):
        raise SettingsError(f"{o.folder} is a fleet of {found}; use another folder for {o.federation}")
    cert = Path(local.tls("broker").cert or "")
    hosts = host_names(x509.load_pem_x509_certificate(cert.read_bytes())) if cert.exists() else o.host
    if new := [host for host in o.host if host not in hosts]:
        raise SettingsError(
            f"the certificate of the broker in {o.folder} is only for {', '.join(hosts)}; use a new folder for "
            f"--host {new[0]}"
        )
    return found


def show(o: Options) -> int:
    authority = Authority(o.root)
    now, register, listing = authority.now(), authority.register, Listing.of(o)
    found = []
    for entry in _due(authority, o.due) if o.due is not None else sorted(
        (e for e in register.entries if e.part != "check"), key=lambda e: (e.name, e.serial)
    ):  # fmt: skip
        reason = f" ({entry.reason})" if entry.reason else ""
        root = f" root {entry.root}" if len(register.roots) > 1 else ""
        grants = shown_grants(authority.grants_of(entry.name)) if entry.part == OPERATOR else ""
        until = day(entry.not_after)[:16]
        listing.line(
            f"{entry.name:20} {entry.part:12} {entry.state(now):8} until {until} {entry.serial}{root}"
            f"{grants and ' grants '}{grants}{reason}"
        )
        found.append({**encode(entry), "state": entry.state(now), "grants": grants})
    rotation = lifecycle.rotation_status(authority) if len(register.roots) > 1 else ""
    if rotation:
        listing.line(rotation)
    listing.end({"federation": authority.federation, "enrolled": found, "rotation": rotation})
    return 0


def renew(o: Options) -> int:
    authority = Authority(o.root)
    if bool(o.names) == (o.due is not None):
        raise SettingsError(
            "give the names to renew, or --due DAYS for all certificates that expire within DAYS days"
        )
    names, code = o.names or [entry.name for entry in _due(authority, o.due)], 0
    for name in names:
        try:
            lifecycle.renew(authority, name, o.days)
        # A bad request must not stop the other requests.
        except StatementError as error:
            print(f"protofleet: {name} is not renewed: {error}", file=sys.stderr)
            code = 1
        else:
            _print_approval(authority, name)
    if not names:
        print(f"nothing expires within {o.due:g} days")
    return code


def revoke(o: Options) -> int:
    authority = Authority(o.root)
    if o.broker is not None:
        print(disconnect.revoke_and_disconnect(authority, o.name, o.reason, o.broker))
        return 0
    lifecycle.revoke(authority, o.name, o.reason)
    print(f"{o.name} is revoked; now update the brokers:")
    _print_broker_approvals(o, authority)
    if (path := o.root / "approvals" / f"{COORDINATOR}.approval").exists():
        print(f"  {path}: on the coordinator's machine, install it with `protofleet enrol install`")
    print(f"  then end the connection of this name: protofleet enrol cut {o.name} HOST:PORT --root {o.root}")
    return 0


def _print_broker_approvals(o: Options, authority: Authority) -> None:
    for entry in authority.register.current_entries(authority.now()):
        if entry.part == "broker":
            path = o.root / "approvals" / f"{entry.name}.approval"
            print(
                f"  {path}: install this file on the broker's machine with `protofleet enrol install`, and send "
                "SIGHUP to Mosquitto"
            )


def cut(o: Options) -> int:
    host, colon, port = o.address.rpartition(":")
    if not colon or not port.isdigit():
        raise SettingsError(f"{o.address!r} is not of the form HOST:PORT")
    authority = Authority(o.root)
    if o.name not in lifecycle.revoked_names(authority, authority.now()):
        raise SettingsError(f"{o.name} is not revoked; first revoke it with `enrol revoke`")
    disconnect.disconnect(authority, o.name, _address(host, int(port)))
    print(f"{o.name} is disconnected from {o.address}")
    return 0


def rotate(o: Options) -> int:
    authority = Authority(o.root)
    if o.finish and o.years is not None:
        raise SettingsError("--years is for a new root, but --finish makes no root; leave out --years")
    if o.force and not o.finish:
        raise SettingsError(
            "use --force only with --finish: --force locks out all names that still use the old root"
        )
    if o.finish:
        lifecycle.finish_rotation(authority, o.force)
        print("the old root is retired, its private keys are destroyed, and every approval is written again:")
        print(
            f"  install each approval in {o.root / 'approvals'}, the broker's approval last; then restart Mosquitto"
        )
        return 0
    lifecycle.begin_rotation(authority, YEARS if o.years is None else o.years)
    print(f"root {authority.roots[-1].number} is introduced; fingerprint: {authority.fingerprint}")
    print(
        f"  1. install the approvals of the brokers and the coordinator ({o.root / 'approvals'}) and restart"
    )
    print("     Mosquitto: the brokers and the coordinator must know the new root before a device uses it")
    print(
        "  2. use `enrol renew` and `enrol install` for the devices, then for the coordinator, then for the brokers"
    )
    print("  3. run `enrol rotate --finish`")
    print(lifecycle.rotation_status(authority))
    return 0


def _due(authority: Authority, days: float) -> list[RegisterEntry]:
    return authority.register.due_entries(authority.now() + days * DAY)


def _enrol_here(
    authority: Authority, folder: Path, name: str, days: float, hosts: tuple[str, ...] = ()
) -> None:
    if (folder / CURRENT).exists():
        raise SettingsError(
            f"{folder} holds enrolled keys already; `enrol renew {name}` and `enrol install` renew them"
        )
    enrol(authority, folder, name, days, hosts)
    print(f"{name} is enrolled in {authority.federation}: {folder / CURRENT}")


def _confirmed(o: Options, seen: str, owner: str) -> bool:
    print(f"fingerprint of the {owner}: {seen}")
    if o.fingerprint:
        return same_fingerprint(o.fingerprint, seen)
    if o.yes:
        return True
    if not sys.stdin.isatty():
        raise SettingsError(
            f"the {owner}'s fingerprint must be confirmed, but there is no terminal; use --fingerprint or --yes"
        )
    return input("Is this the expected fingerprint? [y/N] ").strip().lower() in ("y", "yes")


def _check_fingerprint(o: Options, data: bytes) -> None:
    """Raise StatementError if the fingerprint of the known root differs from --fingerprint.

    This check does not need a terminal.
    """
    if not o.fingerprint or not (o.folder / CURRENT).exists():
        return
    roots = load_trust(o.folder / CURRENT).with_roots(unverified_roots(data)).roots.keys
    if not any(same_fingerprint(o.fingerprint, fingerprint(key)) for key in roots):
        message = f"the root that {o.folder} knows has another fingerprint than --fingerprint"
        raise StatementError(StatementFault.UNKNOWN_ROOT, f"{message}: {fingerprint(roots[-1])}")


def _print_approval(authority: Authority, name: str) -> None:
    entry = authority.register.latest(name)
    assert entry is not None
    path = authority.folder / "approvals" / f"{name}.approval"
    print(f"approved until {day(entry.not_after)}: {path} (send this file back)")
    if entry.part in ("device", OPERATOR):
        path, kind = authority.record_of(entry)
        print(f"give this {'record' if kind == RECORD else 'statement'} to the coordinator: {path}")


def _print_tls_settings(folder: Path) -> None:
    files = tls_files(folder)
    print(f'settings: [broker] tls = {{ ca = "{files.ca}", cert = "{files.cert}", key = "{files.key}" }}')


def grants_in(text: str) -> frozenset[str]:
    """Return the grants that are listed with commas."""
    found = frozenset(part.strip() for part in text.split(",") if part.strip())
    if unknown := sorted(found - {*GRANTS}):
        raise SettingsError(f"there is no grant {unknown[0]!r}; there are {', '.join(GRANTS)}")
    return found


def _address(host: str, port: int) -> BrokerAddress:
    try:
        return replace(BrokerAddress(), host=host, port=port)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _name(name: str, check: Callable[[str], str] = valid_name) -> str:
    try:
        return check(name)
    except ValueError as error:
        raise SettingsError(str(error)) from None


COMMANDS: Final[Mapping[str, Callable[[Options], int]]] = {
    "root": make_root, "request": request, "approve": approve, "install": install, "coordinator": coordinator,
    "broker": broker, "fleet": fleet, "list": show, "renew": renew, "revoke": revoke, "cut": cut, "rotate": rotate,
}  # fmt: skip
