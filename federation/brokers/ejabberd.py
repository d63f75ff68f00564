"""Write the settings of an ejabberd node and its access rules.

The rules are generated from the table in protocol/wire/topics.py. As with Mosquitto, clients need a certificate. A
client must send the certificate's common name as its user name (`broker.username = "certificate"`), and `%u` in a
rule stands for this name. ejabberd reads no revocation list, so the rules deny all topics to a revoked name.
ejabberd makes all letters of a user name small, so no name may have a capital letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import COORDINATOR, STANDBY, TopicParty
from protofleet.protocol.wire.topics import TOPIC_RULES, TopicRule, Topics

SETTINGS_FILE: Final = "ejabberd.yml"
RULES_FILE: Final = "ejabberd-rules.yml"
DOMAIN: Final = "localhost"  # The part of a user's JID behind the @, which no client sends.
# The parties whose rules hold for every name with a certificate, except the coordinator's two names.
EVERY_NAME: Final[frozenset[TopicParty]] = frozenset({"device", "operator"})
SHOWN: Final = 3  # Largest number of names in a message.

# `tls_verify` needs `c2s_cafile`: with `ca_file` alone, ejabberd refuses every client. `anonymous` means that there
# are no passwords; a client is known by its certificate. Without `match_retained_limit`, a coordinator would get the
# retained states of at most 1,000 devices.
SETTINGS: Final = """\
hosts: [{domain}]
loglevel: warning
certfiles: [{cert}, {key}]
ca_file: {ca}
c2s_cafile: {ca}
auth_method: [anonymous]
include_config_file: {rules}

listen:
  -
    module: mod_mqtt
    port: {port}
    ip: {listen}
    tls: true
    tls_verify: true
    backlog: 1000

modules:
  mod_mqtt:
    max_queue: 20000
    session_expiry: 1 day
    match_retained_limit: infinity
    access_publish: MAY_PUBLISH
    access_subscribe: MAY_SUBSCRIBE
"""

RULES: Final = """\
# Made from the table of topics for federation {federation}; all other topics are denied.
acl:
  coordinator:
    user: [{coordinator}]
  standby:
    user: [{standby}]
{revoked}
define_macro:
  MAY_PUBLISH:
{publish}
  MAY_SUBSCRIBE:
{subscribe}
"""


def settings(folder: Path, port: int, listen: str) -> str:
    """Return ejabberd.yml for the enrolled files in a folder. Paths are absolute, as ejabberd starts anywhere."""
    current = folder.absolute() / "current"
    return SETTINGS.format(
        domain=DOMAIN, cert=_quoted(current / "tls.crt"), key=_quoted(current / "tls.key"),
        ca=_quoted(current / "ca.crt"), rules=_quoted(folder.absolute() / RULES_FILE), port=port,
        listen=_quoted(listen),
    )  # fmt: skip


def access_rules(federation: str, revoked: Iterable[str] = ()) -> str:
    """Return the text of the rules.

    As in the rules for Mosquitto, every name with a certificate has the topics of a device and of an operator with
    this name. The coordinator and the standby have rules of their own, and a revoked name has no topic.
    """
    topics, denied = Topics(federation), set(revoked)
    if COORDINATOR in denied:
        denied.add(STANDBY)
    users = ", ".join(_user(name) for name in sorted(denied))
    return RULES.format(
        federation=federation, coordinator=_user(COORDINATOR), standby=_user(STANDBY),
        revoked=f"  revoked:\n    user: [{users}]\n" if users else "",
        publish=_patterns(topics, "write", bool(users)), subscribe=_patterns(topics, "read", bool(users)),
    )  # fmt: skip


def _patterns(topics: Topics, access: str, some_are_revoked: bool) -> str:
    lines = []
    for row in TOPIC_RULES:
        parties = _parties(row, access)
        own = "%u" if parties & EVERY_NAME else "+"
        pattern = topics.prefix + row.pattern.format(device=own, digest="+")
        lines.append(f'    "{pattern}": [{_rule(parties, some_are_revoked)}]')
    return "\n".join([*lines, '    "#": [deny]'])


def _parties(row: TopicRule, access: str) -> set[TopicParty]:
    if access == "write":
        return {row.writer}
    return {row.reader, *row.more_readers, *([row.writer] if row.echoes else [])}


def _rule(parties: set[TopicParty], some_are_revoked: bool) -> str:
    """Return the entries of a rule; ejabberd takes the first one that fits."""
    entries = ["deny: revoked"] if some_are_revoked else []
    own_rules: tuple[TopicParty, ...] = ("coordinator", "standby")
    if parties & EVERY_NAME:
        entries += [f"deny: {party}" for party in own_rules if party not in parties]
        return ", ".join([*map("{{{}}}".format, entries), "allow"])
    entries += [f"allow: {party}" for party in own_rules if party in parties]
    return ", ".join([*map("{{{}}}".format, entries), "deny"])


def _user(name: str) -> str:
    return _quoted(f"{name}@{DOMAIN}")


def _quoted(value: object) -> str:
    return json.dumps(str(value))


def demand_lower_case(names: Iterable[str]) -> None:
    """Raise SettingsError if ejabberd would take one of the names for another one."""
    if capital := sorted(name for name in names if name != name.lower()):
        more = f" and {len(capital) - SHOWN} more" if len(capital) > SHOWN else ""
        raise SettingsError(
            f"{', '.join(capital[:SHOWN])}{more}: ejabberd makes all letters of a name small, so no name may have a "
            "capital letter; enrol these parties under other names, or use Mosquitto or RabbitMQ"
        )
