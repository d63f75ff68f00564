"""A method from no paper: a round of two phases, as in FedPall, in the fewest lines that show this shape.

In phase "train" the server sends the head and the devices send class means. In phase "mix" the server sends the
merged means, the devices send features that are mixed with them, and the server fits the head on all these features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from protofleet.methods.contract.base import Ask, ClientHalf, Method, ServerHalf
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.parts.local import LocalHyper, train
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import load_weights, weights_of


@dataclass(frozen=True)
class Hyper(LocalHyper):
    blend: float = 0.7


class Server(ServerHalf):
    def round(self):
        C, D = self.model.classes, self.model.embedding_size
        wants = {"prototypes": TensorSpec((C, D)), "counts": TensorSpec((C,), "int64", low=0)}
        replies = yield Ask("train", self.payload(), wants)
        share = sum(r.payload["counts"] for r in replies).clamp(min=1)
        means = sum(
            r.payload["prototypes"] * r.payload["counts"].unsqueeze(1) for r in replies
        ) / share.unsqueeze(1)
        mixed = {"features": TensorSpec(("n", D)), "labels": TensorSpec(("n",), "int64", low=0, high=C - 1)}
        replies = yield Ask("mix", {"prototypes": means}, mixed)
        self.fit(
            torch.cat([r.payload["features"] for r in replies]),
            torch.cat([r.payload["labels"] for r in replies]),
        )

    def fit(self, z, y):
        optimizer = torch.optim.SGD(self.model.head.parameters(), lr=0.1)
        for _ in range(50):
            optimizer.zero_grad()
            F.cross_entropy(self.model.head(z), y).backward()
            optimizer.step()

    def payload(self):
        return weights_of(self.model.head, "classifier")

    def state(self):
        return snapshot(self.payload())

    def restore(self, state):
        load_weights(self.model.head, state, "classifier")


class Client(ClientHalf):
    def receive(self, payload):
        load_weights(self.model.head, payload, "classifier")
        self.prototypes = payload.get("prototypes")

    def run(self, ask):
        if ask.phase == "train":
            train(self.model, self.data, self.objective, self.hyper, self.generator("train"))
        self.model.eval()
        with torch.no_grad():
            z, y = self.model.embed(self.data.x), self.data.y
        if ask.phase == "mix":
            return {"features": torch.lerp(self.prototypes[y], z, self.hyper.blend), "labels": y}
        hot = F.one_hot(y, self.model.classes).to(z.dtype)
        counts = hot.sum(0)
        return {"prototypes": hot.T @ z / counts.clamp(min=1).unsqueeze(1), "counts": counts.long()}

    def objective(self, x, y):
        return F.cross_entropy(self.model(x), y)

    def state(self):
        return weights_of(self.model)

    def restore(self, state):
        load_weights(self.model, state)


METHOD = Method("the shape of two phases", Hyper, Server, Client, reports="personal")
