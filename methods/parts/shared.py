"""Halves for a model with a shared part, which is sent and averaged, and a private part.

A method chooses the shared part with `shared_keys`, which are keys of the state dict. The private part stays
on its device, and survives a restart of the device.
"""

from __future__ import annotations

from abc import abstractmethod

import torch.nn.functional as F
from torch import Tensor

from protofleet.methods.contract.base import Ask, ClientHalf, Payload, Round, ServerHalf
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.local import LocalHyper, train
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import keys_of_head, load_weights, weight_wants, weights_of


class SharedPart:
    """The base class of both halves, which chooses the part of the model that is shared."""

    model: Net

    @abstractmethod
    def shared_keys(self) -> frozenset[str]: ...

    def shared(self) -> dict[str, Tensor]:
        return weights_of(self.model, keys=self.shared_keys())

    def load_shared(self, payload: Payload) -> None:
        load_weights(self.model, payload, keys=self.shared_keys())


class SharedHead(SharedPart):
    def shared_keys(self) -> frozenset[str]:
        return keys_of_head(self.model)


class SharingServer(SharedPart, ServerHalf):
    def round(self) -> Round:
        wants = weight_wants(self.model, keys=self.shared_keys())
        replies = yield Ask("train", self.payload(), wants)
        self.load_shared(weighted_mean(replies, wants))

    def payload(self) -> Payload:
        return self.shared()

    def state(self) -> Payload:
        return snapshot(self.shared())

    def restore(self, state: Payload) -> None:
        self.load_shared(state)


class SharingClient(SharedPart, ClientHalf):
    hyper: LocalHyper

    def receive(self, payload: Payload) -> None:
        self.load_shared(payload)

    def run(self, ask: Ask) -> Payload:
        self.learn(ask.phase)
        return self.shared()

    def learn(self, phase: str) -> None:
        train(self.model, self.data, self.objective, self.hyper, self.generator(phase))

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def private_keys(self) -> frozenset[str]:
        return frozenset(self.model.state_dict()) - self.shared_keys()

    def state(self) -> Payload:
        return snapshot(weights_of(self.model, keys=self.private_keys()))

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state, keys=self.private_keys())
