"""A fleet of devices in one process that takes part in attempts of secure aggregation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.coordinator.secagg.steps import SecureSum, SumQuestion, conduct
from protofleet.edge_client.secagg.book import read_book
from protofleet.edge_client.secagg.instance import Instance
from protofleet.edge_client.secagg.past_attempts import PastAttempts
from protofleet.protocol.secagg.control_arrays import SumStep, array_name, as_array, bytes_in
from protofleet.protocol.secagg.directory import Directory
from protofleet.protocol.secagg.field import Field
from protofleet.protocol.secagg.terms import Terms

STEPS = tuple(SumStep)
VECTOR = "weights.masked"
LENGTH = 4
NAMES = tuple(f"board-{number:02}" for number in range(20))
IDENTITIES = {
    name: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()) for name in NAMES
}


def directory(devices: int | Sequence[str] = 20) -> Directory:
    names = NAMES[:devices] if isinstance(devices, int) else devices
    return Directory({name: IDENTITIES[name].public_key().public_bytes_raw() for name in names})


def terms(devices: int, length: int = LENGTH, bits: int = 24, **changes: Any) -> Terms:
    values = {
        "federation": "lab", "run": "spring", "round": 3, "attempt": bytes(15) + b"\x01", "stage": "values",
        "base": hashlib.sha256(b"model").digest(), "length": length, "field": Field(devices, 30.0, 10, bits),
    }  # fmt: skip
    return Terms(**{**values, **changes})


def numbers(devices: int, length: int = LENGTH, seed: int = 0) -> dict[str, np.ndarray]:
    return {
        name: np.random.default_rng([seed, place]).uniform(-30, 30, length)
        for place, name in enumerate(NAMES[:devices])
    }


def plain_sum(agreed: Terms, vectors: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Return the sum of whole numbers, reduced once at the end."""
    total = sum(np.rint(vectors[name] * 2**agreed.field.fraction).astype(np.int64) for name in names)
    return (total % 2**agreed.field.bits).astype(np.uint32)


@dataclass
class Fleet:
    """The devices of an attempt, and how they answer.

    `falls` names the first step that a device does not answer. `lie` may change an answer before it is sent. If
    `restarts` is true, each device is rebuilt from the bytes of its book before each step.
    """

    terms: Terms
    vectors: Mapping[str, np.ndarray]
    falls: Mapping[str, SumStep] = field(default_factory=dict)
    lie: Callable[[SumStep, str, dict[str, Any]], dict[str, Any]] = lambda step, name, answer: answer
    restarts: bool = False
    past: Mapping[str, PastAttempts] = field(default_factory=dict)
    enrolled: Directory = field(default_factory=directory)
    instances: dict[str, Instance] = field(default_factory=dict)

    def begin(self) -> Fleet:
        for name in self.vectors:
            past = self.past.get(name, PastAttempts())
            self.instances[name] = Instance.begin(name, IDENTITIES[name], self.terms, past)
        return self

    def answer(self, question: SumQuestion, name: str) -> dict[str, Any]:
        """Return a device's answer to a question, as arrays."""
        instance = self.instances[name]
        arrays = {**question.shared, **question.personal.get(name, {})}

        def asked(part):
            return bytes_in(arrays, array_name(self.terms.stage, part))

        match question.step:
            case SumStep.KEYS:
                parts = {"keys": instance.keys()}
            case SumStep.SHARES:
                parts = {"shares": instance.shares(asked("roster"), self.enrolled)}
            case SumStep.MASKED:
                words = self.terms.field.encode(self.vectors[name])
                masked = instance.masked(asked("first"), asked("shares"), words)
                parts = {"signature": masked.signature, "opened": masked.opened, VECTOR: masked.vector}
            case SumStep.AGREE:
                parts = {"signature": instance.agree(asked("survivors"))}
            case SumStep.UNMASK:
                parts = {"released": instance.unmask(asked("signatures"))}
        stage = self.terms.stage
        return {
            part if part == VECTOR else array_name(stage, part): as_array(data)
            for part, data in parts.items()
        }

    def answers(self, question: SumQuestion) -> dict[str, dict[str, Any]]:
        """Return the answers of the devices that answer this step."""
        found = {}
        for name in question.devices:
            if name in self.falls and STEPS.index(question.step) >= STEPS.index(self.falls[name]):
                continue
            if self.restarts:
                kept = read_book(self.instances[name].book.encode())
                self.instances[name] = Instance(name, IDENTITIES[name], kept)
            found[name] = self.lie(question.step, name, self.answer(question, name))
        return found

    def run(self, until: SumStep | None = None, previous: Sequence[str] = ()) -> Any:
        """Return the SecureSum, or the question of the step `until`, which no device has answered then."""
        if not self.instances:
            self.begin()
        steps = conduct(self.terms, self.enrolled, self.instances, VECTOR, previous=previous)
        question = next(steps)
        while question.step is not until:
            try:
                question = steps.send(self.answers(question))
            except StopIteration as end:
                assert isinstance(end.value, SecureSum)
                return end.value
        return question
