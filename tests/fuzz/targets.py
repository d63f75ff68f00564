"""The fuzz targets: every reader of bytes that another party, or an earlier process, has written.

A target takes bytes. It returns a word for the result, or raises the errors that its reader documents. Any
other error is a finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.spool.spool import members_in, names_in
from protofleet.deploy.fleet.checks import Workload, failures, run_checks
from protofleet.deploy.fleet.device.facts import read_facts
from protofleet.deploy.fleet.execute import NonsenseError, read_state
from protofleet.deploy.fleet.plan import InstalledSettings
from protofleet.deploy.fleet.plan import plan as make_plan
from protofleet.deploy.fleet.ssh import CommandResult
from protofleet.deploy.fleet.status import status_cells
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.status_file import Status
from protofleet.edge_client.state.file import encode_state_file, read_state_file
from protofleet.methods.contract.plan import read_plan
from protofleet.protocol.link.fetch import indices
from protofleet.protocol.secagg.faults import SecaggError
from protofleet.protocol.security.envelope import read_header
from protofleet.protocol.settings.reader import SettingsError, decode, encode, parse_toml, write_toml
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.wire import arrays, blocks, codec
from protofleet.protocol.wire.codec import TaskId
from protofleet.protocol.wire.messages import BlockRequest, Update
from protofleet.protocol.wire.reasons import Rejected
from protofleet.protocol.wire.topics import Topics
from tests.deploy.fleet.boards import GOOD, NOW, WANTED
from tests.fuzz.coded import BUNDLES, RECORDS, bundle_bytes, delta_bytes
from tests.fuzz.secure_sums import SUMS
from tests.protocol.golden.vectors import load
from tests.protocol.wire.test_codec import MANIFEST, ONE_OF_EACH
from tests.support.lying_device import encoded, parts_of, with_table
from tests.support.small_federation import plan

KINDS = sorted(codec.DECODERS)
TOPICS = Topics("lab")
HASH = bytes(range(32)).hex()


@dataclass(frozen=True)
class Target:
    run: Callable[[bytes], str]
    documented: type[Exception] | tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    share: float  # The share of all inputs; it is small for readers of files, which are slow.
    # The bytes that the result of an input may have. A reader may use four times this memory and that of the input.
    declared: Callable[[bytes], int] | None = None


def envelope(data: bytes) -> str:
    return read_header(data)[0].kind[:9]


def message(data: bytes) -> str:
    """Decode a message; the first byte chooses its kind, as the header does.

    The second byte says whether there is a base.
    """
    kind = KINDS[data[0] % len(KINDS)] if data else "hello"
    place = TaskId(1, "train", bytes(32) if data[1:2] > b"\x7f" else b"")
    found, attachment = codec.decode(kind, data[2:], "a", place)
    if isinstance(found, BlockRequest):
        assert len(indices(found.ranges, codec.MAX_BLOCKS)) <= codec.MAX_ASKED
    if isinstance(found, Update) and isinstance(attachment, bytes):
        return kind + body(attachment)
    return kind


def body(data: bytes) -> str:
    found = arrays.Body(lambda start, stop: data[start:stop], len(data))
    read = sum(found[name].nbytes for name in found)
    assert read <= len(data) and sum(n for _, n in found.layout) == len(data)
    return f"{len(found)} arrays"


def block(data: bytes) -> str:
    return str(blocks.unpack(data)[1] % 4)


def host_facts(data: bytes) -> str:
    """Read a host's facts as `deploy status`, `plan` and `doctor` do; words are escaped for a terminal."""
    facts = read_facts(data.decode("utf-8", "replace"))
    checks = run_checks(facts, Workload(), NOW)
    said = [check.reason for check in checks] + [*map(str, status_cells("a", facts, WANTED)[0])]
    assert all(words.isprintable() for words in said)
    steps = make_plan(facts, WANTED, checks, InstalledSettings())
    return f"{len(failures(checks))} {type(steps[0]).__name__}"


def host_state(data: bytes) -> str:
    """Read the output of the step `state` as `deploy apply` does; its words are escaped for a terminal."""
    state = read_state("a", CommandResult(0, data.decode("utf-8", "replace"), ""))
    service = state.service
    assert all(words.isprintable() for words in (service.active, service.sub, state.answers, state.over))
    assert state.status is None or state.status.pid == service.pid
    return f"{bool(service.pid)} {state.healthy} {bool(state.over)}"


def topic(data: bytes) -> str:
    place = TOPICS.parse(data.decode("utf-8", "replace"))
    return place.kind if place else "elsewhere"


def coordinator_settings(data: bytes) -> str:
    return decode(CoordinatorSettings, parse_toml(data, "settings")).name[:1]


def device_settings(data: bytes) -> str:
    return decode(DeviceSettings, parse_toml(data, "settings")).name[:1]


def run_plan(data: bytes) -> str:
    return read_plan(data).method


def device_state(data: bytes) -> str:
    return str(sum(len(entry.answers) for entry in read_state_file(data).runs))


def coordinator_state(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape")
    return str(len(names_in(text))) if text[:2] != "[[" else f"{len(members_in(text))} members"


def golden() -> list[bytes]:
    return [bytes.fromhex(vector["hex"]) for vector in load()["vectors"]]


def messages() -> list[bytes]:
    found = []
    for said in ONE_OF_EACH:
        head = bytes([KINDS.index(codec.KINDS[type(said)]), 255])
        attachments = [MANIFEST, encoded(BODIES[0])] if isinstance(said, Update) else [None]
        found += [head + codec.encode(said, attachment) for attachment in attachments]
    return found


BODIES: list[dict[str, Any]] = [
    {"weights.w": np.arange(6, dtype=np.float32).reshape(2, 3), "counts": np.array([1, 2], np.int64)},
    {"labels": np.zeros((0, 3), np.int8), "seen": np.array([True]), "weights.b": np.array(0.5, np.float16)},
    {},
]


def bodies() -> list[bytes]:
    assert parts_of(encoded(BODIES[0]))
    odd = with_table([["w", "float32", [0, 1 << 39]], ["x", "int64", []]], bytes(8))
    return [*map(encoded, BODIES), odd]


def topics() -> list[bytes]:
    names = [TOPICS.coord_state, TOPICS.round, TOPICS.up("a"), TOPICS.down("b-7"), TOPICS.device_state("c"),
             TOPICS.broadcast(HASH), "protofleet/1/lab/up/coordinator", "protofleet/2/lab/up/a"]  # fmt: skip
    return [name.encode() for name in names]


def hosts() -> list[bytes]:
    status = json.dumps(asdict(Status(7, 1, NOW, "0.1.0", 5, connected=True, heard=True)))
    good = json.dumps(asdict(GOOD))
    fit = {
        "arch": "aarch64", "uid": 0, "now": NOW, "tool": "rsync", "python": "3.10.12", "venv": "yes", "systemd": 249,
        "systemd_state": "running", "disk_free": 8 * 10**10, "state_free": 8 * 10**10, "ram": 6 * 10**9,
        "temperature": "48000 cpu", "l4t": "36.4.3", "docker": "27.5.1", "torch": "2.5", "cert_until": NOW,
        "served": "current v000017 16", "release": WANTED.release, "good": good, "status": status, "agent": 7,
        "ActiveState": "active", "end": "yes",
    }  # fmt: skip
    bare = {key: fit[key] for key in ("arch", "uid", "now", "status", "end")}
    return ["".join(f"{key}={value}\0" for key, value in one.items()).encode() for one in (fit, bare)]


def service_states() -> list[bytes]:
    """Return outputs of `remote.sh state`: of a process in a run, of one that ends, and of no process."""
    running = Status(7, 1, NOW, "0.1.0", 5, connected=True, heard=True)
    ends = replace(running, over="its classes are others")
    common = {"ActiveState": "active", "SubState": "running", "NRestarts": 2, "agent": 7, "answers": ""}
    told = [common | {"status": json.dumps(asdict(status))} for status in (running, ends)]
    stopped = {"ActiveState": "inactive", "agent": 0, "NRestarts": 0, "answers": "yes"}
    return ["".join(f"{key}={value}\0" for key, value in one.items()).encode() for one in (*told, stopped)]


def settings(cls: type, **more: Any) -> list[bytes]:
    table = encode(decode(cls, {"name": "spring", **more}))
    return [write_toml(table).encode(), write_toml({"name": "spring", **more}).encode()]


def states() -> list[bytes]:
    answer = {"question": HASH, "round": 1, "phase": "train", "base": HASH, "object": HASH,
              "examples": 5, "metrics": {"loss": 0.5}}  # fmt: skip
    saved = {"boot": 3, "run": "spring", "plan": HASH, "half": HASH, "broadcast": "", "answers": [answer] * 2}
    bare = [json.dumps(row).encode() for row in ({**saved, "answers": []}, {**saved, "epoch": 1})]
    return [*bare, *(encode_state_file(read_state_file(row)) for row in bare)]


TARGETS = {
    "envelope": Target(envelope, Rejected, golden, 0.17),
    "message": Target(message, Rejected, messages, 0.24),
    "body": Target(body, Rejected, bodies, 0.19),
    **{
        name: Target(run, Rejected, seeds, 0.02, delta_bytes if "delta" in name else bundle_bytes)
        for name, (run, seeds) in BUNDLES.items()
    },
    **{
        name: Target(run, Rejected, seeds, 0.005, most) for name, (run, most, seeds) in RECORDS.items()
    },
    **{name: Target(run, SecaggError, seeds, share) for name, (run, seeds, share) in SUMS.items()},
    "block": Target(block, Rejected, golden, 0.06),
    "host_facts": Target(host_facts, SettingsError, hosts, 0.05),
    "host_state": Target(host_state, NonsenseError, service_states, 0.02),
    "topic": Target(topic, Rejected, topics, 0.06),
    "plan": Target(run_plan, SettingsError, lambda: [plan("fedavg").encode(), plan("fedpall").encode()], 0.02),
    "device_state": Target(device_state, (DamagedError, NewerFormatError), states, 0.01),
    "coordinator_state": Target(
        coordinator_state, DamagedError, lambda: [b'["a", "b"]', b'[["a", 5, [2, 3]], ["b", 1, []]]'], 0.02
    ),
    "coordinator_settings": Target(
        coordinator_settings, SettingsError,
        lambda: settings(CoordinatorSettings, rounds=3, classes=3, method={"name": "fedavg"}), 0.005,
    ),
    "device_settings": Target(device_settings, SettingsError, lambda: settings(DeviceSettings), 0.005),
}  # fmt: skip
