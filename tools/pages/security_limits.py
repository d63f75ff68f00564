"""Write the tables of docs/security-limits.md: python -m tools.pages.security_limits.

These tables hold limits of the code, and each number is read from the code.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Final, TypeAlias

from tools.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "security-limits.md"
# What is limited; its bound, if it is not a number in the code; the place where it is set; what happens
# beyond it.
Row: TypeAlias = tuple[str, ...]
TABLES: Final[Mapping[str, tuple[str, tuple[Row, ...]]]] = {
    "sent": (
        "| what | bound | set in | beyond |",
        (
            (
                "bytes of an envelope",
                "",
                "`protofleet.protocol.link.base.MAX_FRAME`",
                "`too_large`, before its signature is checked",
            ),
            (
                "envelopes of no use, at once",
                "",
                "`protofleet.protocol.link.rate_limit.FRAME_BURST`",
                "`flood`, before anything is read",
            ),
            ("and each second", "", "`protofleet.protocol.link.rate_limit.FRAME_RATE`", "`flood`"),
            (
                "frames beyond all that, at once",
                "",
                "`protofleet.protocol.link.rate_limit.EXCESS_BURST`",
                "it floods: `banned`",
            ),
            (
                "and each second",
                "",
                "`protofleet.protocol.link.rate_limit.EXCESS_RATE`",
                "it floods: `banned`",
            ),
            ("blocks of no use, at once", "", "`protofleet.protocol.link.rate_limit.BLOCK_BURST`", "`flood`"),
            ("and each second", "", "`protofleet.protocol.link.rate_limit.BLOCK_RATE`", "`flood`"),
            ("a broadcast", "to its cohort alone; each block once for nothing", "", "`not_invited`"),
            (
                "blocks sent to it again, at once",
                "",
                "`protofleet.protocol.link.rate_limit.REPEAT_BURST`",
                "passed over; it may ask again",
            ),
            ("and each second", "", "`protofleet.protocol.link.rate_limit.REPEAT_RATE`", "passed over"),
            (
                "blocks that wait for a cohort",
                "",
                "`protofleet.protocol.link.broadcast.MAX_PENDING`",
                "passed over",
            ),
            (
                "blocks in flight from all devices",
                "",
                "`protofleet.protocol.link.block_budget.BUDGET`",
                "asked for later",
            ),
            (
                "seconds that a block asked for counts in that",
                "",
                "`protofleet.protocol.link.fetch.SILENT_SECONDS`",
                "who lets one fall now and then holds up nobody",
            ),
            (
                "unfinished answers of one device",
                "one file, until the phase ends",
                "`protofleet.protocol.storage.store.ObjectStore.begin`",
                "the older one goes",
            ),
            (
                "answers on the disk, and room for those that are coming",
                "",
                "`protofleet.coordinator.devices.limits.CoordinatorLimits.spool_bytes`, `[limits]`",
                "`no_room`; it will be said again",
            ),
            (
                "an offer where that, or the disk, is short",
                "its device's share: what there is for the phase, by the devices asked",
                "`protofleet.coordinator.gate.shares`",
                "it yields to who asks for less",
            ),
            (
                "an offer of which nothing comes",
                "its room, until somebody needs it",
                "`protofleet.protocol.link.fetch.SILENT_SECONDS`",
                "it yields to anybody",
            ),
            (
                "names without a key",
                "one bucket for all of them",
                "`protofleet.protocol.link.rate_limit.UNKNOWN_SENDER`",
                "`unknown_sender`, `flood`",
            ),
            (
                "devices, domains in metrics",
                "",
                "`protofleet.coordinator.observe.metrics.MAX_DEVICES`",
                "the label `other`",
            ),
            (
                "letters of a message in the log",
                "",
                "`protofleet.runtime.logs.LONGEST`",
                "cut; what is no sign or letter is written out as `\\x1b`, `\\n`",
            ),
            (
                "lines of the log about rejections",
                "one a second, 20 at once",
                "`protofleet.coordinator.context.ProcessContext`",
                "the counters have all of them",
            ),
        ),
    ),
    "bans": (
        "| what | seconds | set in |",
        (
            (
                "the first ban of a name; each doubles",
                "",
                "`protofleet.coordinator.devices.bans.BAN_SECONDS`",
            ),
            (
                "the first pause of strangers, or after an error of ours; each doubles",
                "",
                "`protofleet.coordinator.devices.bans.PAUSE_SECONDS`",
            ),
            ("the longest of either", "", "`protofleet.coordinator.devices.bans.LONGEST_SECONDS`"),
            (
                "quiet after the end, until the next is a first one",
                "",
                "`protofleet.coordinator.devices.bans.QUIET_SECONDS`",
            ),
        ),
    ),
    "memory": (
        "| what | bytes | set in | beyond |",
        (
            (
                "frames that nobody has read yet",
                "",
                "`protofleet.protocol.transport.receive_queue.MAX_BYTES`",
                "dropped, `flood`",
            ),
            (
                "of one topic",
                "",
                "`protofleet.protocol.transport.receive_queue.MAX_TOPIC_BYTES`",
                "dropped, `flood`",
            ),
            (
                "frames of one topic",
                "",
                "`protofleet.protocol.transport.receive_queue.MAX_TOPIC_FRAMES`",
                "dropped, `flood`",
            ),
            (
                "frames that wait for the broker",
                "",
                "`protofleet.protocol.transport.outbox.MAX_BYTES`",
                "not sent; what matters is said again",
            ),
            (
                "of it, for small frames alone",
                "",
                "`protofleet.protocol.transport.outbox.RESERVED`",
                "so a receipt gets through when blocks fill the rest",
            ),
            (
                "an answer that is checked",
                "{} numbers of it at a time",
                "`protofleet.methods.contract.wants.SLICE`",
                "",
            ),
            (
                "a packet, at both parties",
                "",
                "`protofleet.protocol.transport.packets.MOST_RECEIVED`",
                "CONNECT says it; the connection ends when the packet's header has come",
            ),
            (
                "connections to its metrics and health",
                "64, of 10 s and 8 KiB each",
                "`protofleet.runtime.metrics_server.CONNECTIONS`, `.SECONDS`, `.MOST_HEAD`",
                "the oldest goes; none has a thread",
            ),
        ),
    ),
    "weights": (
        "| what | bound | set in | why |",
        (
            (
                "bytes of the table",
                "",
                "`protofleet.methods.nets.weights_file.LARGEST_TABLE`",
                "the limit of the format; more than the file has is refused too",
            ),
            (
                "tensors",
                "",
                "`protofleet.methods.nets.weights_file.MOST_TENSORS`",
                "each one is an object in memory",
            ),
            (
                "depth of brackets in the table",
                "",
                "`protofleet.methods.nets.weights_file.DEEPEST`",
                "JSON makes an object of each bracket",
            ),
            (
                "commas in the table",
                "16 for each tensor, and 4,096",
                "`protofleet.methods.nets.weights_file`",
                "JSON makes an object of each value",
            ),
            (
                "characters of a name",
                "{}, printable; each name once",
                "`protofleet.methods.nets.weights_file.MOST_NAME`",
                "names are printed in messages",
            ),
            (
                "axes of a tensor",
                "",
                "`protofleet.methods.nets.weights_file.MOST_AXES`",
                "no network has more",
            ),
            (
                "a number in the table",
                "",
                "`protofleet.methods.nets.weights_file.LARGEST`",
                "products of sizes stay comparable with the size of the file",
            ),
            (
                "bytes of the numbers",
                "each belongs to exactly one tensor; as many as its shape and type need",
                "`protofleet.methods.nets.weights_file`",
                "tensors that share bytes would need the memory of each",
            ),
        ),
    ),
}


def row(what: str, bound: str, place: str, *beyond: str) -> str:
    """Return a row. The first name of the place is that of the number.

    The bound says at which position the number stands.
    """
    if place.startswith("`protofleet.") and (not bound or "{}" in bound):
        bound = (bound or "{}").replace("{}", f"{int(pkgutil.resolve_name(place.split('`')[1])):,}")
    return f"| {' | '.join((what, bound, place, *beyond))} |\n".replace("|  |", "| |")


def generate(text: str) -> str:
    for name, (head, rows) in TABLES.items():
        table = f"{head}\n{'|---' * (head.count('|') - 1)}|\n" + "".join(row(*cells) for cells in rows)
        text = replace_table(text, f"tools.pages.security_limits: {name}", table)
    return text


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
