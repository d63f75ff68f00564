"""Write the tables of docs/security-limits.md: python -m tools.pages.security_limits.

The tables show limits of the code. Each number is read from the code.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Final, TypeAlias

from tools.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "security-limits.md"
# The columns of a table: the limited quantity, a formula of the bound ("" if the bound is the number itself), the
# place of the number in the code, and the consequence of a larger quantity.
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
                "useless envelopes, at once",
                "",
                "`protofleet.protocol.link.rate_limit.FRAME_BURST`",
                "`flood`, before the envelope is read",
            ),
            (
                "useless envelopes, each second",
                "",
                "`protofleet.protocol.link.rate_limit.FRAME_RATE`",
                "`flood`",
            ),
            (
                "frames above these limits, at once",
                "",
                "`protofleet.protocol.link.rate_limit.EXCESS_BURST`",
                "the device is `banned`",
            ),
            (
                "frames above these limits, each second",
                "",
                "`protofleet.protocol.link.rate_limit.EXCESS_RATE`",
                "the device is `banned`",
            ),
            ("useless blocks, at once", "", "`protofleet.protocol.link.rate_limit.BLOCK_BURST`", "`flood`"),
            (
                "useless blocks, each second",
                "",
                "`protofleet.protocol.link.rate_limit.BLOCK_RATE`",
                "`flood`",
            ),
            ("a broadcast", "only to its cohort; each block once, without counting", "", "`not_invited`"),
            (
                "blocks repeated for a device, at once",
                "",
                "`protofleet.protocol.link.rate_limit.REPEAT_BURST`",
                "skipped; the device may ask again",
            ),
            (
                "blocks repeated for a device, each second",
                "",
                "`protofleet.protocol.link.rate_limit.REPEAT_RATE`",
                "skipped",
            ),
            (
                "blocks that wait for a cohort",
                "",
                "`protofleet.protocol.link.broadcast.MAX_PENDING`",
                "skipped",
            ),
            (
                "blocks of all devices that were requested and have not arrived",
                "",
                "`protofleet.protocol.link.block_budget.BUDGET`",
                "requested later",
            ),
            (
                "seconds for which such a block counts",
                "",
                "`protofleet.protocol.link.fetch.SILENT_SECONDS`",
                "the block no longer counts, so a device that loses blocks does not delay others",
            ),
            (
                "unfinished answers of one device",
                "one file, until the phase ends",
                "`protofleet.protocol.storage.store.ObjectStore.begin`",
                "the older file is deleted",
            ),
            (
                "answers on the disk, and space for expected answers",
                "",
                "`protofleet.coordinator.devices.limits.CoordinatorLimits.spool_bytes`, `[limits]`",
                "`no_room`; the device repeats the answer",
            ),
            (
                "an offer, if this space or the disk is short",
                "the device's share: the space for the phase, divided by the number of asked devices",
                "`protofleet.coordinator.gate.shares`",
                "a device with a smaller offer comes first",
            ),
            (
                "an offer whose blocks do not arrive",
                "keeps its space until another device needs it",
                "`protofleet.protocol.link.fetch.SILENT_SECONDS`",
                "any other device comes first",
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
                "characters of a message in the log",
                "",
                "`protofleet.runtime.logs.LONGEST`",
                "cut; characters that cannot be printed are written as `\\x1b`, `\\n`",
            ),
            (
                "lines of the log about rejections",
                "one a second, 20 at once",
                "`protofleet.coordinator.context.ProcessContext`",
                "not logged; the counters count all of them",
            ),
        ),
    ),
    "sums": (
        "| what | bound | set in | beyond |",
        (
            (
                "devices of a roster",
                "",
                "`protofleet.protocol.secagg.field.MOST_DEVICES`",
                "refused by the settings and by each device",
            ),
            (
                "numbers of a vector",
                "",
                "`protofleet.protocol.secagg.terms.MOST_LENGTH`",
                "refused by the settings and by each device",
            ),
            (
                "attempts of one round, as a device counts them",
                "",
                "`protofleet.edge_client.secagg.past_attempts.MOST_ATTEMPTS`",
                "the device refuses the attempt, so a coordinator cannot make it compute without end",
            ),
            (
                "choices of shares that the coordinator tries for one secret",
                "",
                "`protofleet.coordinator.secagg.sum.MOST_CHOICES`",
                "the attempt ends; 3 wrong shares of 20 are found within this bound",
            ),
            (
                "an answer of a wrong form, signature, share or length",
                "exact bytes for each step",
                "`protofleet.coordinator.secagg.steps`",
                "the device counts as missing; the sum of the others goes on",
            ),
        ),
    ),
    "bans": (
        "| what | seconds | set in |",
        (
            (
                "the first ban of a name; each further ban lasts twice as long",
                "",
                "`protofleet.coordinator.devices.bans.BAN_SECONDS`",
            ),
            (
                "the first pause of unknown names or after an internal error; each further pause lasts twice as long",
                "",
                "`protofleet.coordinator.devices.bans.PAUSE_SECONDS`",
            ),
            ("the longest ban or pause", "", "`protofleet.coordinator.devices.bans.LONGEST_SECONDS`"),
            (
                "time without a ban after which the next ban counts as the first",
                "",
                "`protofleet.coordinator.devices.bans.QUIET_SECONDS`",
            ),
        ),
    ),
    "memory": (
        "| what | bytes | set in | beyond |",
        (
            (
                "received frames that have not been read yet",
                "",
                "`protofleet.protocol.transport.receive_queue.MAX_BYTES`",
                "dropped, `flood`",
            ),
            (
                "such frames of one topic",
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
                "frames that wait to be sent to the broker",
                "",
                "`protofleet.protocol.transport.outbox.MAX_BYTES`",
                "not sent; important messages are repeated",
            ),
            (
                "part of these bytes, reserved for small frames",
                "",
                "`protofleet.protocol.transport.outbox.RESERVED`",
                "so that a receipt is sent even if blocks fill the rest",
            ),
            (
                "numbers of an answer that are checked at once",
                "",
                "`protofleet.methods.contract.wants.SLICE`",
                "",
            ),
            (
                "a packet, at both parties",
                "",
                "`protofleet.protocol.transport.packets.MOST_RECEIVED`",
                "CONNECT announces this limit; a larger packet's header ends the connection",
            ),
            (
                "connections to its metrics and health",
                "64, of 10 s and 8 KiB each",
                "`protofleet.runtime.metrics_server.CONNECTIONS`, `.SECONDS`, `.MOST_HEAD`",
                "the oldest is closed; connections have no threads",
            ),
        ),
    ),
    "coded": (
        "| what | bound | set in | test | beyond |",
        (
            (
                "bytes of a coded update without zlib",
                "the most that its stages allow",
                "`protofleet.protocol.coding.sizes.most_bytes_of_kind`",
                "`tests/federations/test_codec.py`: "
                "`test_a_damaged_bundle_is_refused_with_its_reason_and_the_run_ends`",
                "`too_large`, refused before a block is requested",
            ),
            (
                "bytes that a zlib stream makes",
                "as many; the stream states the number first",
                "`protofleet.protocol.coding.bundle.Rules.most_raw`",
                "`tests/protocol/coding/test_bundle.py`: "
                "`test_the_size_of_a_zlib_stream_is_checked_before_it_is_unpacked`",
                "`too_large`, `bad_body`",
            ),
            (
                "forms of arrays",
                "the forms of the stage",
                "`protofleet.protocol.coding.stages.allowed_forms`",
                "`tests/protocol/coding/test_bundle.py`: `test_a_form_that_the_plan_does_not_allow_is_refused`",
                "`bad_body`",
            ),
            (
                "a shape",
                "its bytes must have arrived; an array that needs few bytes has the shape of the broadcast's array",
                "`protofleet.protocol.coding.forms.NEED_REFERENCE`",
                "`tests/protocol/coding/test_bundle.py`: "
                "`test_a_huge_claimed_shape_is_refused_before_memory_is_reserved`",
                "`bad_body`",
            ),
            (
                "numbers that ternary arrays keep",
                "one in `keep`, of all arrays together",
                "`protofleet.protocol.coding.coder.most_kept`",
                "`tests/protocol/coding/test_bundle.py`: `test_kept_numbers_of_all_arrays_together_are_limited`",
                "`bad_body`",
            ),
            (
                "numbers of a record",
                "",
                "`protofleet.protocol.coding.forms.MOST_IN_RECORD`",
                "`tests/protocol/coding/test_forms.py`: `test_records_cover_an_array_in_order_and_end_at_rows`",
                "a longer array has several records, and a reader decodes one at a time",
            ),
            (
                "bytes of a stream that a reader unpacks at once",
                "",
                "`protofleet.protocol.coding.bits.CHUNK`",
                "`tests/protocol/coding/test_forms.py`: "
                "`test_a_reader_needs_at_most_four_times_the_memory_of_a_record_and_its_numbers`",
                "a reader needs at most four times the memory of the record and its numbers",
            ),
            (
                "steps of a delta",
                "",
                "`protofleet.protocol.coding.delta.MAX_STEPS`",
                "`tests/protocol/coding/test_delta.py`: `test_a_broken_delta_is_rejected_with_its_reason`",
                "the device logs the fault and requests the whole broadcast",
            ),
            (
                "bytes of a bundle in a delta, without zlib",
                "twice the broadcast, and {}",
                "`protofleet.protocol.coding.delta.SLACK`",
                "`tests/protocol/coding/test_delta.py`: "
                "`test_a_delta_that_claims_too_many_bytes_is_rejected_before_they_are_unpacked`",
                "the same",
            ),
            (
                "the broadcast that a delta makes",
                "the hash in the task",
                "`protofleet.edge_client.received_delta`",
                "`tests/federations/test_deltas.py`: `test_a_device_with_a_failed_delta_fetches_the_whole_broadcast`",
                "the same",
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
                "the limit of the format; a table larger than its file is refused too",
            ),
            (
                "tensors",
                "",
                "`protofleet.methods.nets.weights_file.MOST_TENSORS`",
                "each tensor is an object in memory",
            ),
            (
                "depth of brackets in the table",
                "",
                "`protofleet.methods.nets.weights_file.DEEPEST`",
                "JSON makes an object for each bracket",
            ),
            (
                "commas in the table",
                "16 for each tensor, plus 4,096",
                "`protofleet.methods.nets.weights_file`",
                "JSON makes an object for each value",
            ),
            (
                "characters of a name",
                "{} printable characters; each name once",
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
                "each byte belongs to exactly one tensor; as many bytes as the shapes and types need",
                "`protofleet.methods.nets.weights_file`",
                "tensors that share bytes would need the memory of each",
            ),
        ),
    ),
}


def row(what: str, bound: str, place: str, *beyond: str) -> str:
    """Return a row of a table. The first name in `place` is the name of the number in the code.

    In `bound`, {} is replaced by this number.
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
