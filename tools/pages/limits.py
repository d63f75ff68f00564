"""Write the table of limits in docs/protocol.md: python -m tools.pages.limits."""

from __future__ import annotations

import pkgutil
from typing import Final

from tools.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "protocol.md"
HEAD: Final = "| limit | value | in the code |\n|---|---|---|\n"
LIMITS: Final = (
    ("bytes of a header", "protofleet.protocol.security.envelope.MAX_HEADER"),
    ("an integer in a header", "protofleet.protocol.security.envelope.MAX_NUMBER"),
    ("bytes of a signature", "protofleet.protocol.security.envelope.SIGNATURE"),
    (
        "numbers by which a sequence may be behind the newest sequence",
        "protofleet.protocol.link.replay_window.WIDTH",
    ),
    ("bytes of a payload", "protofleet.protocol.wire.codec.MAX_PAYLOAD"),
    ("bytes of a text", "protofleet.protocol.wire.codec.MAX_TEXT"),
    ("entries of a map, metrics", "protofleet.protocol.wire.codec.MAX_METRICS"),
    ("entries of an array, counts", "protofleet.protocol.wire.codec.MAX_COUNTS"),
    ("broadcasts in `holds`", "protofleet.protocol.wire.codec.MAX_HOLDS"),
    ("ranges of a want", "protofleet.protocol.wire.codec.MAX_RANGES"),
    ("blocks of an object", "protofleet.protocol.wire.codec.MAX_BLOCKS"),
    ("largest size of a block in bytes", "protofleet.protocol.wire.codec.MAX_BLOCK"),
    ("blocks in one want", "protofleet.protocol.wire.codec.MAX_ASKED"),
    ("largest number of a round", "protofleet.protocol.wire.codec.MAX_ROUND"),
    ("bytes of a phase's name", "protofleet.protocol.wire.codec.MAX_PHASE"),
    ("parts of a manifest", "protofleet.protocol.wire.codec.MAX_PARTS"),
    ("bytes of a hash", "protofleet.protocol.wire.codec.HASH"),
    ("bytes of a block's hash", "protofleet.protocol.wire.codec.SHORT_HASH"),
    ("bytes of a table", "protofleet.protocol.wire.arrays.MAX_TABLE"),
    ("arrays of a body", "protofleet.protocol.wire.arrays.MAX_ARRAYS"),
    ("bytes of a name of an array", "protofleet.protocol.wire.arrays.MAX_NAME"),
    ("lengths of a shape", "protofleet.protocol.wire.arrays.MAX_DIMS"),
    (
        "product of the lengths of a shape, without lengths of 0",
        "protofleet.protocol.wire.arrays.MAX_NUMBERS",
    ),
    ("forms in `can` and `about.uses`", "protofleet.protocol.wire.tables.MAX_FORMS"),
    ("letters of a form", "protofleet.protocol.wire.tables.MAX_FORM"),
    ("names of classes, names of metrics", "protofleet.protocol.wire.tables.MAX_NAMES"),
    ("letters of the name of a class or of a metric", "protofleet.protocol.wire.tables.MAX_LETTERS"),
    ("rows of `wants`", "protofleet.protocol.wire.tables.MAX_WANTED"),
    ("rules of a row", "protofleet.protocol.wire.tables.MAX_RULES"),
    ("bytes of a body that holds a manifest", "protofleet.protocol.link.indirect_manifest.MAX_BYTES"),
    ("bytes of an object", "protofleet.protocol.link.base.MAX_OBJECT"),
    ("usual size of a block in bytes", "protofleet.protocol.wire.blocks.DEFAULT_BLOCK"),
    ("bytes of a block's frame without its data", "protofleet.protocol.wire.blocks.OVERHEAD"),
    ("bytes of an inline body", "protofleet.protocol.link.base.INLINE"),
    ("bytes of an envelope", "protofleet.protocol.link.base.MAX_FRAME"),
    (
        "seconds of retries at a broker whose packets are too small for some devices",
        "protofleet.coordinator.devices.small_packets.LASTS_SECONDS",
    ),
    ("bytes of a packet that a party receives", "protofleet.protocol.transport.packets.MOST_RECEIVED"),
    ("bytes left free in a packet", "protofleet.protocol.link.base.FRAME_OVERHEAD"),
    ("blocks of one object in flight", "protofleet.protocol.link.base.WINDOW"),
    ("blocks in flight to the coordinator", "protofleet.protocol.link.block_budget.BUDGET"),
    ("devices with credit at a time", "protofleet.protocol.link.block_budget.MOST_CREDIT"),
    ("seconds before blocks are requested again, at first", "protofleet.protocol.link.fetch.RETRY_SECONDS"),
    (
        "most seconds before blocks are requested again",
        "protofleet.protocol.link.fetch.LONGEST_RETRY_SECONDS",
    ),
    (
        "longest time between two blocks that a receiver doubles for its wait, in seconds",
        "protofleet.protocol.link.fetch.LONGEST_GAP_SECONDS",
    ),
    (
        "bytes a second of the slowest line",
        "protofleet.protocol.link.fetch.SLOWEST_LINE",
    ),
    (
        "bytes a second of an unknown line",
        "protofleet.protocol.link.fetch.USUAL_LINE",
    ),
    (
        "pause between requests, in seconds, at which a sender counts as silent",
        "protofleet.protocol.link.fetch.SILENT_SECONDS",
    ),
    ("seconds that a block waits for the next request", "protofleet.protocol.link.broadcast.LINGER_SECONDS"),
    (
        "most seconds that a block waits for requests",
        "protofleet.protocol.link.broadcast.LONGEST_LINGER_SECONDS",
    ),
    (
        "bytes a second at which a broker is assumed to pass on a copy for many devices",
        "protofleet.protocol.link.broadcast.PASSED_ON_PER_SECOND",
    ),
    (
        "most seconds for which a copy counts as on its way",
        "protofleet.protocol.link.broadcast.LONGEST_PASSING_ON_SECONDS",
    ),
    ("blocks of a broadcast that wait for the cohort", "protofleet.protocol.link.broadcast.MAX_PENDING"),
    ("blocks that are sent again to one device, a second", "protofleet.protocol.link.rate_limit.REPEAT_RATE"),
    ("blocks that are sent again to one device, at once", "protofleet.protocol.link.rate_limit.REPEAT_BURST"),
    (
        "useless envelopes of one device, a second",
        "protofleet.protocol.link.rate_limit.FRAME_RATE",
    ),
    ("useless envelopes of one device, at once", "protofleet.protocol.link.rate_limit.FRAME_BURST"),
    ("useless blocks of one device, a second", "protofleet.protocol.link.rate_limit.BLOCK_RATE"),
    ("useless blocks of one device, at once", "protofleet.protocol.link.rate_limit.BLOCK_BURST"),
    (
        "seconds without a request until the coordinator does not wait for a device",
        "protofleet.protocol.link.broadcast.INACTIVE_SECONDS",
    ),
    (
        "seconds between hellos of a device that receives nothing, at first (section 6)",
        "protofleet.edge_client.conversation.hello_timer.HELLO_SECONDS",
    ),
    (
        "most seconds between hellos; a quiet device waits at least three quarters of this time",
        "protofleet.edge_client.conversation.hello_timer.QUIET_SECONDS",
    ),
    (
        "seconds over which idle devices spread the hellos that answer one event",
        "protofleet.edge_client.conversation.hello_timer.SPREAD_SECONDS",
    ),
    (
        "seconds without a `here` until an idle device sends a hello",
        "protofleet.edge_client.conversation.hello_timer.HEARD_SECONDS",
    ),
    (
        "seconds for which a `here` names a device that is missed",
        "protofleet.coordinator.devices.hello_requests.REQUEST_SECONDS",
    ),
    (
        "seconds between two `here` messages of a coordinator",
        "protofleet.coordinator.here_timer.HERE_SECONDS",
    ),
    (
        "seconds from the tasks to the first `here`; each further pause is twice as long, up to 60",
        "protofleet.coordinator.here_timer.ASK_SECONDS",
    ),
    ("names in a `here`", "protofleet.protocol.wire.messages.MOST_NAMED"),
    ("letters of `by`", "protofleet.protocol.wire.messages.MOST_BY"),
    ("names in `runs`", "protofleet.protocol.wire.messages.MOST_RUNS"),
    ("largest `capacity`", "protofleet.protocol.wire.tables.MAX_CAPACITY"),
    ("bytes of a name in a `here`", "protofleet.protocol.wire.tables.SHORT_NAME"),
    (
        "most seconds that a coordinator stays after the end of a run",
        "protofleet.coordinator.shutdown.STAY_SECONDS",
    ),
    ("seconds before a coordinator sends `finished` again", "protofleet.coordinator.shutdown.AGAIN_SECONDS"),
    (
        "seconds that a boot or an epoch may be ahead of the clock",
        "protofleet.protocol.link.clocks.MOST_AHEAD",
    ),
    (
        "seconds without a new message until a device reports the silence",
        "protofleet.edge_client.conversation.coordinator_watchdog.SILENT_SECONDS",
    ),
    (
        "seconds before an update is sent again, at first",
        "protofleet.edge_client.conversation.answer_delivery.RESEND_SECONDS",
    ),
    (
        "the first pause as a multiple of the time of the last receipt, if this product is longer",
        "protofleet.edge_client.conversation.answer_delivery.RECEIPT_FACTOR",
    ),
    (
        "most seconds before an update is sent again",
        "protofleet.edge_client.conversation.answer_delivery.LONGEST_RESEND_SECONDS",
    ),
    ("answers that a device keeps, of one round", "protofleet.edge_client.state.file.KEPT_ANSWERS"),
    (
        "seconds that a broker keeps a device's session",
        "protofleet.edge_client.config.DeviceSettings.session_seconds",
    ),
    ("examples of a device, by default", "protofleet.coordinator.devices.limits.CoordinatorLimits.examples"),
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
