"""For each reason of a refusal that the product knows, one wrong behaviour of a raw device."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protofleet.protocol.wire.reasons import Reason
from tests.hostile import wire
from tests.hostile.device import Answer, Device, Task

HELLO = {"classes": 3, "examples": 10, "protocol": [1, 1]}


@dataclass(frozen=True)
class Lie:
    """A wrong behaviour of a device.

    The device does `work` with every task. If it is not `asked`, it gets no task, and acts when other devices
    have one.
    """

    work: Callable[[Device, Task], Answer | None]
    hello: Mapping[str, Any] = field(default_factory=dict)
    asked: bool = True
    counted: bool = (
        True  # False if the coordinator does not count this lie, because only devices read such a message.
    )


def changed(change: Callable[[np.ndarray], Any]) -> Lie:
    """Return a lie whose answer is honest except for its largest array."""

    def work(device: Device, task: Task) -> Answer:
        arrays = dict(task.arrays)
        name = max(arrays, key=lambda name: arrays[name].size)
        return Answer({**arrays, name: change(arrays[name])})

    return Lie(work)


def says(*frames: Callable[[Device, Task], bytes]) -> Lie:
    """Return a lie that publishes frames on the topic of the device and gives no answer."""

    def work(device: Device, task: Task) -> None:
        for frame in frames:
            device.publish(frame(device, task))

    return Lie(work)


def hello(**header: Any) -> Callable[[Device, Task], bytes]:
    return lambda device, task: device.frame("hello", {**HELLO, "plan": device.plan}, **header)


def forged(device: Device, task: Task) -> bytes:
    frame = hello()(device, task)
    return frame[:-1] + bytes([frame[-1] ^ 1])


def for_another(device: Device, task: Task) -> bytes:
    """Return a hello that is sealed to a key that is not the coordinator's."""
    stranger = X25519PrivateKey.generate().public_key().public_bytes_raw()
    return wire.envelope(device.header("hello"), HELLO, device.who.sign, stranger)


def unasked_block(device: Device, task: Task) -> bytes:
    return wire.block(wire.manifest(wire.EMPTY), 0, wire.EMPTY)


def short_block(device: Device, task: Task) -> Answer:
    offer = device.offer(task.body)
    device.serves[offer[0]] = (task.body[:-1], offer)
    return Answer(offer)


def two_answers(device: Device, task: Task) -> Answer:
    device.answer(task.place, Answer(task.body))
    name, value = next(iter(task.arrays.items()))
    return Answer({**task.arrays, name: value + 1})


def too_much(device: Device, task: Task) -> Answer:
    return Answer(device.offer(wire.body({"weights.more": np.zeros(1 << 20, np.uint8)}), 1 << 16))


def flood(device: Device, task: Task) -> None:
    for number in range(2000):
        device.publish(struct.pack("<I", number) * 50)


def answer_to(**place: Any) -> Lie:
    def work(device: Device, task: Task) -> None:
        asked = {"round": task.round, "phase": task.phase, "base": task.base, **place}
        device.answer((asked["round"], asked["phase"], asked["base"]), Answer(task.body))

    return Lie(work)


def leave(device: Device) -> None:
    """Leave in order, so that no round waits for the device, and do not return."""
    device.says_hello = False
    device.say("bye", {"reason": "drained"})


LIES: Mapping[Reason, Lie] = {
    Reason.MALFORMED: says(lambda device, task: bytes(200)),
    Reason.VERSION: says(hello(major=2)),
    Reason.UNKNOWN_SENDER: says(hello(sender="nobody")),
    Reason.BAD_SIGNATURE: says(forged),
    Reason.WRONG_TOPIC: says(lambda device, task: device.frame("state", {"online": True})),
    Reason.WRONG_RECIPIENT: Lie(says(hello(recipient="honest")).work, counted=False),
    Reason.NOT_SEALED: says(hello(suite=0)),
    Reason.NOT_FOR_US: says(for_another),
    Reason.WRONG_FEDERATION: says(hello(federation="another")),
    Reason.STALE_BOOT: says(hello(boot=1)),
    Reason.BOOT_AHEAD: says(hello(boot=1 << 62)),
    Reason.EPOCH_AHEAD: Lie(says(hello(epoch=1 << 62)).work, counted=False),
    Reason.STALE_EPOCH: Lie(says(hello(epoch=1)).work, counted=False),
    Reason.STALE_ROUND: Lie(answer_to(round=0).work, counted=False),
    Reason.BAD_BODY: Lie(lambda device, task: Answer(b"\xff" * 64)),
    Reason.TOO_LARGE: Lie(too_much),
    Reason.BAD_BLOCK: Lie(short_block),
    Reason.UNKNOWN_OBJECT: says(unasked_block),
    Reason.NO_ROOM: Lie(lambda device, task: Answer(wire.manifest(task.body))),
    Reason.FLOOD: Lie(flood),
    Reason.BANNED: Lie(flood),
    Reason.UNFIT: Lie(lambda device, task: None, hello={"classes": 7}, asked=False),
    Reason.NOT_INVITED: Lie(lambda device, task: Answer(task.body), asked=False),
    Reason.LATE: answer_to(round=99),
    Reason.EQUIVOCATION: Lie(two_answers),
    Reason.BAD_CLAIM: Lie(lambda device, task: Answer(task.body, metrics={"No Name \x1b[2J": 1.0})),
    Reason.WRONG_ARRAYS: Lie(lambda device, task: Answer({})),
    Reason.WRONG_DTYPE: changed(lambda value: value.astype(np.int32)),
    Reason.WRONG_SHAPE: changed(lambda value: value[..., None]),
    Reason.NOT_FINITE: changed(lambda value: np.full_like(value, np.nan)),
    Reason.OUT_OF_BOUNDS: changed(lambda value: np.full_like(value, 1e30)),
}
