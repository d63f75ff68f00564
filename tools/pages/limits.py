"""Write the table of limits in docs/protocol.md: python -m tools.pages.limits."""

from __future__ import annotations

import pkgutil
from typing import Final

from tools.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "protocol.md"
HEAD: Final = "| limit | value | in the code |\n|---|---|---|\n"
LIMITS: Final = (
    ("bytes of a header", "protofleet.protocol.security.envelope.MAX_HEADER"),
    ("a number in a header", "protofleet.protocol.security.envelope.MAX_NUMBER"),
    ("bytes of a signature", "protofleet.protocol.security.envelope.SIGNATURE"),
    ("how far behind a sequence may come", "protofleet.protocol.link.replay_window.WIDTH"),
    ("bytes of a payload", "protofleet.protocol.wire.codec.MAX_PAYLOAD"),
    ("bytes of a text", "protofleet.protocol.wire.codec.MAX_TEXT"),
    ("entries of a map, metrics", "protofleet.protocol.wire.codec.MAX_METRICS"),
    ("entries of an array, counts", "protofleet.protocol.wire.codec.MAX_COUNTS"),
    ("broadcasts in `holds`", "protofleet.protocol.wire.codec.MAX_HOLDS"),
    ("ranges of a want", "protofleet.protocol.wire.codec.MAX_RANGES"),
    ("blocks of an object", "protofleet.protocol.wire.codec.MAX_BLOCKS"),
    ("bytes of a block, at most", "protofleet.protocol.wire.codec.MAX_BLOCK"),
    ("blocks in one want", "protofleet.protocol.wire.codec.MAX_ASKED"),
    ("number of a round", "protofleet.protocol.wire.codec.MAX_ROUND"),
    ("bytes of a phase's name", "protofleet.protocol.wire.codec.MAX_PHASE"),
    ("parts of a manifest", "protofleet.protocol.wire.codec.MAX_PARTS"),
    ("bytes of a hash", "protofleet.protocol.wire.codec.HASH"),
    ("bytes of a block's hash", "protofleet.protocol.wire.codec.SHORT_HASH"),
    ("bytes of a table", "protofleet.protocol.wire.arrays.MAX_TABLE"),
    ("arrays of a body", "protofleet.protocol.wire.arrays.MAX_ARRAYS"),
    ("bytes of a name of an array", "protofleet.protocol.wire.arrays.MAX_NAME"),
    ("lengths of a shape", "protofleet.protocol.wire.arrays.MAX_DIMS"),
    ("numbers of an array, lengths of 0 aside", "protofleet.protocol.wire.arrays.MAX_NUMBERS"),
    ("forms in `can` and `about.uses`", "protofleet.protocol.wire.tables.MAX_FORMS"),
    ("letters of a form", "protofleet.protocol.wire.tables.MAX_FORM"),
    ("names of classes, names of metrics", "protofleet.protocol.wire.tables.MAX_NAMES"),
    ("letters of one", "protofleet.protocol.wire.tables.MAX_LETTERS"),
    ("rows of `wants`", "protofleet.protocol.wire.tables.MAX_WANTED"),
    ("rules of a row", "protofleet.protocol.wire.tables.MAX_RULES"),
    ("bytes of a body that holds a manifest", "protofleet.protocol.link.indirect_manifest.MAX_BYTES"),
    ("bytes of an object", "protofleet.protocol.link.base.MAX_OBJECT"),
    ("bytes of a block, as a rule", "protofleet.protocol.wire.blocks.DEFAULT_BLOCK"),
    ("bytes of a block's frame beside its data", "protofleet.protocol.wire.blocks.OVERHEAD"),
    ("bytes of an inline body", "protofleet.protocol.link.base.INLINE"),
    ("bytes of an envelope", "protofleet.protocol.link.base.MAX_FRAME"),
    (
        "seconds for which a broker is tried again that is too small for some devices",
        "protofleet.coordinator.devices.small_packets.LASTS_SECONDS",
    ),
    ("bytes of a packet that a party receives", "protofleet.protocol.transport.packets.MOST_RECEIVED"),
    ("bytes left free in a packet", "protofleet.protocol.link.base.FRAME_OVERHEAD"),
    ("blocks of one object in flight", "protofleet.protocol.link.base.WINDOW"),
    ("blocks in flight to the coordinator", "protofleet.protocol.link.coordinator.BUDGET"),
    ("devices with credit", "protofleet.protocol.link.coordinator.MOST_CREDIT"),
    ("seconds before blocks are asked for again", "protofleet.protocol.link.fetch.RETRY_SECONDS"),
    ("and at most", "protofleet.protocol.link.fetch.LONGEST_RETRY_SECONDS"),
    ("longest gap between blocks that is doubled", "protofleet.protocol.link.fetch.LONGEST_GAP_SECONDS"),
    ("pause from which on a sender counts as silent", "protofleet.protocol.link.fetch.SILENT_SECONDS"),
    ("seconds a block waits for the next who asks", "protofleet.protocol.link.broadcast.LINGER_SECONDS"),
    ("and at most", "protofleet.protocol.link.broadcast.LONGEST_LINGER_SECONDS"),
    ("bytes a second of a copy on its way", "protofleet.protocol.link.broadcast.PASSED_ON_PER_SECOND"),
    ("seconds it takes at most", "protofleet.protocol.link.broadcast.LONGEST_PASSING_ON_SECONDS"),
    ("blocks of a broadcast that wait for the cohort", "protofleet.protocol.link.broadcast.MAX_PENDING"),
    ("blocks sent again to one device, a second", "protofleet.protocol.link.rate_limit.REPEAT_RATE"),
    ("and at once", "protofleet.protocol.link.rate_limit.REPEAT_BURST"),
    (
        "envelopes of one device that were of no use, a second",
        "protofleet.protocol.link.rate_limit.FRAME_RATE",
    ),
    ("and at once", "protofleet.protocol.link.rate_limit.FRAME_BURST"),
    ("blocks of one device that were of no use, a second", "protofleet.protocol.link.rate_limit.BLOCK_RATE"),
    ("and at once", "protofleet.protocol.link.rate_limit.BLOCK_BURST"),
    (
        "seconds until an inactive device is not waited for",
        "protofleet.protocol.link.broadcast.INACTIVE_SECONDS",
    ),
    (
        "seconds of silence between hellos at first, drawn down to half; then each twice as long",
        "protofleet.edge_client.conversation.hello_timer.HELLO_SECONDS",
    ),
    (
        "and at most; the same, of a device that nobody waits for, drawn down to three quarters",
        "protofleet.edge_client.conversation.hello_timer.QUIET_SECONDS",
    ),
    (
        "seconds over which devices at rest spread hellos that one event asks of all",
        "protofleet.edge_client.conversation.hello_timer.SPREAD_SECONDS",
    ),
    (
        "seconds without a `here` before such a device says hello",
        "protofleet.edge_client.conversation.hello_timer.HEARD_SECONDS",
    ),
    (
        "seconds for which a `here` names a device that is missed",
        "protofleet.coordinator.devices.hello_requests.REQUEST_SECONDS",
    ),
    ("seconds between two `here` of a coordinator", "protofleet.coordinator.here_timer.HERE_SECONDS"),
    (
        "seconds from a question to a `here`; from there each twice as late, up to 60",
        "protofleet.coordinator.here_timer.ASK_SECONDS",
    ),
    ("names in a `here`", "protofleet.protocol.wire.messages.MOST_NAMED"),
    ("bytes of such a name", "protofleet.protocol.wire.tables.SHORT_NAME"),
    ("seconds that a coordinator stays at the end", "protofleet.coordinator.shutdown.STAY_SECONDS"),
    ("seconds before it says `finished` again", "protofleet.coordinator.shutdown.AGAIN_SECONDS"),
    ("seconds that a boot or an epoch may lie ahead", "protofleet.protocol.link.clocks.MOST_AHEAD"),
    (
        "seconds without news before a device complains",
        "protofleet.edge_client.conversation.coordinator_watchdog.SILENT_SECONDS",
    ),
    (
        "seconds before an update is said again",
        "protofleet.edge_client.conversation.answer_delivery.RESEND_SECONDS",
    ),
    (
        "or so many times as long as its last receipt took, where that is longer",
        "protofleet.edge_client.conversation.answer_delivery.RECEIPT_FACTOR",
    ),
    ("and at most", "protofleet.edge_client.conversation.answer_delivery.LONGEST_RESEND_SECONDS"),
    ("answers that a device keeps, of one round", "protofleet.edge_client.state.file.KEPT_ANSWERS"),
    (
        "seconds that a broker keeps a device's session",
        "protofleet.edge_client.config.DeviceSettings.session_seconds",
    ),
    ("examples of a device, as a rule", "protofleet.coordinator.devices.limits.Limits.examples"),
    ("letters of a domain", "protofleet.coordinator.devices.limits.MAX_DOMAIN"),
    ("seconds of MQTT keepalive", "protofleet.protocol.transport.mqtt.KEEPALIVE_SECONDS"),
)


def row(words: str, name: str) -> str:
    value = pkgutil.resolve_name(name)
    return f"| {words} | {value if value != int(value) else int(value):,} | `{name}` |\n"


def generate(text: str) -> str:
    return replace_table(text, "tools.pages.limits", HEAD + "".join(row(*limit) for limit in LIMITS))


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
