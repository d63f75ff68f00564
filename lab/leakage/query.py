"""Check what a user asks of a measurement of leakage."""

from __future__ import annotations

from protofleet.lab.leakage.attacks.registry import ATTACKS
from protofleet.lab.leakage.finding import ATTACKERS
from protofleet.lab.leakage.measure import LeakageQuery
from protofleet.lab.leakage.observed import Observed
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.suggest import there_are


def query_of(
    observed: Observed | None,
    device: str,
    attacker: str,
    kinds: str,
    number: int | None = None,
    thorough: bool = False,
) -> LeakageQuery:
    """Return the query; raise SettingsError if a value is unknown. Without `observed`, devices are not checked."""
    chosen = next((one for one in ATTACKERS if one == attacker), None)
    if chosen is None:
        raise SettingsError(f"--attacker is {attacker!r}; {there_are(attacker, ATTACKERS)}")
    known = sorted({kind for attack in ATTACKS for kind in attack.kinds})
    wanted = [kind for kind in kinds.split(",") if kind]
    if unknown := [kind for kind in wanted if kind not in known]:
        raise SettingsError(f"--kinds has {unknown[0]!r}; {there_are(unknown[0], known)}")
    if observed is None:
        return LeakageQuery([], chosen, frozenset(wanted), thorough)
    devices = observed.devices
    if device and device not in devices:
        raise SettingsError(f"--device is {device!r}; {there_are(device, devices)}")
    rounds = sorted({one.number for one in observed.exchanges})
    if number is not None and number not in rounds:
        have = ", ".join(map(str, rounds))
        raise SettingsError(f"--round is {number}, but there are only answers of round {have}")
    return LeakageQuery([device] if device else devices, chosen, frozenset(wanted), thorough)
