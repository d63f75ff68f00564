"""FedNova (Wang et al., NeurIPS 2020): FedAvg whose devices count the same however many steps they take.

x <- x - (sum_i p_i a_i) sum_i p_i (x - x_i) / a_i

x is the global model, and x_i the model of device i, which has the share p_i of all examples. a_i is the number of
its steps. With momentum rho, a_i is the sum of (1 - rho^k) / (1 - rho) over the steps k.

Let y be the mean of all x_i with the weights p_i / a_i. Then the new x is x + s (y - x), with
s = (sum_i p_i a_i) (sum_i p_i / a_i). So each device sends its model, as in FedAvg, and a_i. The server does not
count more steps than a device can take with its examples. If all a_i are equal, s is 1, and the round is a round of
FedAvg. BatchNorm statistics do not change in steps, so their new value is y.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import torch

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.steps import effective_steps, steps_of
from protofleet.methods.parts.averaging import shares_of, weighted_mean
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.server_steps import move_parameters
from protofleet.methods.parts.weights import WEIGHTS, weight_wants


def normaliser(hyper: LocalHyper, examples: int) -> float:
    """Return a_i of a device with this number of examples; no examples count as one step."""
    return effective_steps(max(1, steps_of(hyper.epochs, hyper.batch, examples)), hyper.momentum)


class Server(fedavg.Server):
    def round(self) -> Round:
        models = weight_wants(self.model)
        most = {member.device: normaliser(self.hyper, member.examples) for member in self.cohort}
        steps = TensorSpec((1,), "float64", low=1.0, high=max(most.values()))
        replies = yield Ask("train", self.payload(), {**models, "steps": steps})
        a = {r.device: min(float(r.payload["steps"]), most[r.device]) for r in replies}
        weights, scale = weights_and_scale(replies, a)
        mean = weighted_mean(replies, models, weights)
        move_parameters(self.model, mean, lambda _, x, y: x + scale * (y - x))


def weights_and_scale(replies: Sequence[Reply], a: dict[str, float]) -> tuple[dict[str, float], float]:
    """Return the weights p_i / a_i of the mean y, and s."""
    p = {reply.device: share for reply, share in shares_of(replies)}
    weights = {device: p[device] / a[device] for device in p}
    return weights, fsum(p[device] * a[device] for device in p) * fsum(weights.values())


class Client(fedavg.Client):
    def run(self, ask: Ask) -> Payload:
        taken = normaliser(self.hyper, len(self.data.y))
        return {**super().run(ask), "steps": torch.tensor([taken], dtype=torch.float64)}


def cost(sizes: Sizes) -> Cost:
    return Cost(up={"weights": sizes.weights, "steps": eight_bytes(1)}, down={"weights": sizes.weights})


METHOD = Method("arXiv:2007.07481", LocalHyper, Server, Client, arrays=(*WEIGHTS, "steps"), cost=cost)
