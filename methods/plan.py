"""What a run is about, as the coordinator states it and every device takes it on: plain, typed, hashed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from methods import load, nets
from methods.base import ClientHalf, Method, Samples, ServerHalf
from methods.nets.base import Net
from protocol.settings import SettingsError, decode, encode


@dataclass(frozen=True)
class Network:
    name: str = "cnn23"
    feature_size: int | None = None

    def __post_init__(self) -> None:
        if self.name not in nets.names():
            raise ValueError(f"no network {self.name!r}; there are {', '.join(nets.names())}")


@dataclass(frozen=True)
class Plan:
    method: str
    classes: int
    rounds: int
    seed: int = 0
    size: int = 32  # images are size x size
    network: Network = Network()
    hyper: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ValueError(f"classes is {self.classes}, it must be at least 2")
        try:
            decode(self.load().Hyper, self.hyper, "method")
        except LookupError as error:
            raise SettingsError(str(error).strip('"')) from None

    def load(self) -> Method:
        return load(self.method)

    def settings(self) -> Any:
        return decode(self.load().Hyper, self.hyper, "method")

    def model(self) -> Net:
        """The same first weights everywhere."""
        image = (3, self.size, self.size)
        network = self.network
        return nets.build(
            network.name, classes=self.classes, image=image, feature_size=network.feature_size, seed=self.seed
        )

    def server_half(self) -> ServerHalf:
        return self.load().Server(self.model(), self.settings(), self.seed)

    def client_half(self, data: Samples, device: str) -> ClientHalf:
        return self.load().Client(self.model(), data, self.settings(), self.seed, device)

    def encode(self) -> bytes:
        return json.dumps(encode(self), sort_keys=True).encode()

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.encode()).digest()


def read_plan(text: bytes) -> Plan:
    """A plan from the wire; SettingsError where this side cannot follow it."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the plan is not JSON: {error}") from None
    return decode(Plan, table, "plan")
