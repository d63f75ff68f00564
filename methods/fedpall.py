"""FedPall (Zhang et al., ICCV 2025): a server learns from features that devices mix with prototypes.

Client n: L = CE(H(G(x)), y) + mu L_KL(A(G(x))) + delta L_InfoNCE(G(x), y), A frozen   (eqs. 6-8)
          r~ = Mask * (alpha z + (1 - alpha) G^y), z = G(x)                           (eqs. 9-11)
Server  : G^k <- mean of the c_n^k, weighted by N_n^k                                  (eq. 4)
          A <- SGD on CE(A(r~), n), C_g <- SGD on CE(C_g(r~), y)                       (eqs. 12, 13)

G makes the features. H is the head of a device, and C_g the head of the server. A is a network of the server that
predicts the device of a feature. c_n^k is the prototype of class k on device n, from N_n^k samples. G^k is the global
prototype of class k. No weights are averaged: G, H and the batch norms of both stay on the device. A round has two
exchanges:
  train  the server sends A and C_g. C_g replaces H, except its batch norms. The device trains and sends c_n^k.
  mix    the server sends the new G^k. The device sends mixed features and labels. The server trains.
In "train", the server sends the G^k of the round before only if a device of the cohort did not take part in that
round. In round 1 there are no G^k, and L_InfoNCE is 0. Some settings have the value "paper", and other values for
other readings:
  order    in fig. 2 prototypes are made before local training. The authors' code and ours make them afterwards.
  mu       the paper has 0.7 for L_KL and 0.3 (delta) for L_InfoNCE (Digits). The code has 0.3 and 0.7.
  kl       eq. 6 is KL(A || uniform). The code has KL(uniform || A): "reverse".
  infonce  eq. 7 leaves the own class out of the sum: "paper". "code" does not normalise prototypes in the sum.
           Our default is the usual form, "standard". Where eq. 7 prints sim(x, ..), we read sim(G(x), ..).
  tau, alpha, beta  only the code states them: 3, U(0.8, 1) rounded to two decimals, and 0.9. A device draws one alpha
           and one mask for each round. The code's mask keeps exactly int(beta d) numbers: "exact".
  normalise_local_protos  the code scales the c_n^k to length 1 before it averages them.
  features, amplifier  the code computes both with the statistics of the batch: "train". The running statistics
           do not change.
Losses are means over the batch, not sums. Figs. 3 and 4: use_kl, use_infonce. Fig. 6: use_global_classifier.
Variants of section 5.3 (privacy): noise = 1; alpha_low = 1 for no mixing; beta = 1 for no mask. They change how a
device computes the arrays, not which arrays are sent. Mixing and mask hide nothing, even from a coordinator that only
follows the protocol: from c_n^k and the mean of a class's rows the coordinator can compute alpha, and then every
number that the mask keeps.
Output i of A is for the i-th device that was ever in a cohort, and N in L_KL is the number of outputs. The server
uses the same optimizer as the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import singleset
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import (
    Ask,
    Method,
    Payload,
    Reply,
    Round,
    Samples,
    ServerHalf,
    seeded,
)
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes, parameters
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec, like
from protofleet.methods.maths.adversary import MASKS, kl_with_uniform, mixed, mixing_share, prototype_infonce
from protofleet.methods.maths.geometry import unit
from protofleet.methods.maths.means import class_means, merge_class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.nets.mlp import amplifier, fedpall_classifier
from protofleet.methods.parts.local import LocalHyper, demand, demand_one_of, embed, train
from protofleet.methods.parts.pooled import FEATURES, Outputs, ServerModels, amplifier_from, feature_wants
from protofleet.methods.parts.prototypes import (
    HELD_ROWS,
    LARGEST_NUMBER,
    class_means_in,
    has_rows,
    held_row_wants,
    known_rows,
    table_of,
)
from protofleet.methods.parts.rules import nearest_known
from protofleet.methods.parts.small_classes import CountsIfLimited, LeastSamplesHyper, sent_means
from protofleet.methods.parts.state import names_from_tensor, names_to_tensor, snapshot
from protofleet.methods.parts.weights import keys_of_norms, load_weights, torch_device_of, weights_of
from protofleet.protocol.settings.bounds import (
    Batch,
    Epochs,
    Momentum,
    Rate,
    Share,
    Temperature,
    Weight,
    Within,
)

Classifier = Literal["paper", "network"]
Direction = Literal["paper", "reverse"]
InfoNCE = Literal["standard", "paper", "code"]
Mask = Literal["bernoulli", "exact"]
Mode = Literal["eval", "train"]


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    """The settings, with defaults for Digits.

    For Office and PACS: epochs 10, batch 32, mu 0.1, delta 0.1, server_epochs 3.
    """

    momentum: Momentum = 0.0
    weight_decay: Weight = 0.0
    classifier: Classifier = "paper"
    """Form of the classifiers H and C_g, `paper` (d-512-512-K) or `network` (the network's own last layers)."""
    mu: Weight = 0.7
    """Weight of L_KL (0.1 for Office and PACS)."""
    delta: Weight = 0.3
    """Weight of L_InfoNCE (0.1 for Office and PACS)."""
    tau: Temperature = 3.0
    """Temperature of L_InfoNCE."""
    kl: Direction = "paper"
    """Direction of L_KL, `paper` (eq. 6) or `reverse` (the authors' code)."""
    infonce: InfoNCE = "standard"
    """Form of L_InfoNCE, `standard`, `paper` (eq. 7, without the own class in the sum) or `code` (with prototypes
    that are not normalised).
    """
    use_kl: bool = True
    """If false, the loss has no L_KL."""
    use_infonce: bool = True
    """If false, the loss has no L_InfoNCE."""
    use_global_classifier: bool = True
    """If false, devices keep their own classifier and do not take C_g."""
    alpha_low: Share = 0.8
    """Lower bound of alpha, the part of a device's own feature in a mixed feature; 1 means no mixing."""
    alpha_high: Share = 1.0
    """Upper bound of alpha."""
    alpha_round: Annotated[int, Within(0, 15)] = 2
    """Number of decimals of alpha."""
    mask: Mask = "bernoulli"
    """Form of the mask, `bernoulli` (drawn for each number) or `exact` (exactly int(beta d) numbers stay)."""
    beta: Annotated[float, Within(0, 1, above=True)] = 0.9
    """Part of the numbers of a mixed feature that the mask keeps; 1 means no mask."""
    noise: Weight = 0.0
    """Standard deviation of normal noise on mixed features; 0 means none."""
    normalise_local_protos: bool = False
    """If true, devices scale their prototypes to unit length before these are averaged, as in the authors' code."""
    features: Mode = "eval"
    """Mode of the network when it makes the features to mix, `eval`, or `train` as in the authors' code."""
    amplifier: Mode = "eval"
    """Mode of the amplifier in local training, `eval`, or `train` as in the authors' code."""
    clients: Outputs = 0
    """Number of outputs (N) of the amplifier at the start, also for devices that come later; 0 means that an
    output is added when a device first takes part.
    """
    server_epochs: Epochs = 1
    """Number of passes of the server over the features of a round."""
    server_batch: Batch = 64
    """Number of features in a batch on the server."""
    server_lr: Rate = 0.01
    """Learning rate of SGD on the server."""
    server_momentum: Momentum = 0.9
    """Momentum of SGD on the server; 0 means none."""
    server_weight_decay: Weight = 1e-5
    """Weight decay of SGD on the server; 0 means none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("classifier", self.classifier, get_args(Classifier))
        demand_one_of("kl", self.kl, get_args(Direction))
        demand_one_of("infonce", self.infonce, get_args(InfoNCE))
        demand_one_of("mask", self.mask, get_args(Mask))
        demand_one_of("features", self.features, get_args(Mode))
        demand_one_of("amplifier", self.amplifier, get_args(Mode))
        low, high = self.alpha_low, self.alpha_high
        demand("alpha_high", high, low <= high, f"between alpha_low = {low} and 1")

    @property
    def server(self) -> LocalHyper:
        return LocalHyper(
            epochs=self.server_epochs, batch=self.server_batch, lr=self.server_lr,
            momentum=self.server_momentum, weight_decay=self.server_weight_decay,
        )  # fmt: skip


class Server(CountsIfLimited, ServerHalf):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        C_g = classifier_of(model, hyper, seed)
        self.models = ServerModels(C_g, model.embedding_size, max(hyper.clients, 1), seed)
        self.prototypes, self.known = table_of({}, model)
        self.latest: list[str] = []  # Devices that received the prototypes in "mix" of the last round.
        self.figures: dict[str, float] = {}

    def round(self) -> Round:
        self.figures = {}
        self.models.add_devices(member.device for member in self.cohort)
        replies = yield Ask("train", self.payload_for_cohort(), self.prototype_wants())
        self.count_devices(replies)
        self.merge(replies)
        replies = yield Ask("mix", self.payload(), self.feature_wants())
        self.figures = self.models.fit(replies, self.hyper.server, self.generator("fit"))
        self.latest = [reply.device for reply in replies]

    def payload_for_cohort(self) -> Payload:
        """Return C_g and A, and the prototypes if a device of the cohort lacks the prototypes of the last round."""
        lacking = any(member.device not in self.latest for member in self.cohort)
        return {**self.models.weights(), **(self.payload() if lacking else {})}

    def payload(self) -> Payload:
        return known_rows(self.prototypes, self.known)

    def prototype_wants(self) -> Mapping[str, TensorSpec]:
        return held_row_wants(self.model, LARGEST_NUMBER)

    def feature_wants(self) -> Mapping[str, TensorSpec]:
        rows = feature_wants(self.model, self.cohort)
        most, last = rows["features"].most, self.model.classes - 1
        return {**rows, "labels": TensorSpec(("n",), "int64", low=0, high=last, most=most)}

    def merge(self, replies: Sequence[Reply]) -> None:
        """Merge the prototypes by eq. 4.

        Rows of one device for the same class are pooled. A class that no device holds keeps its row.
        """
        torch_device = torch_device_of(self.model)
        pieces = (class_means_in(reply.payload, self.model.classes) for reply in replies)
        merged, counts = (part.to(torch_device) for part in merge_class_means(pieces))
        self.prototypes = torch.where(counts.unsqueeze(1) > 0, merged, self.prototypes)
        self.known = self.known | (counts > 0)

    def state(self) -> Payload:
        return snapshot({**self.models.state(), **self.payload(), "latest": names_to_tensor(self.latest)})

    def restore(self, state: Payload) -> None:
        self.models.restore(state)
        self.prototypes, self.known = (
            part.to(torch_device_of(self.model)) for part in table_of(state, self.model)
        )
        self.latest = names_from_tensor(state["latest"])

    def monitor(self) -> Mapping[str, float]:
        return {**self.figures, **super().monitor()}


class Client(singleset.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.H = classifier_of(model, hyper, seed)
        self.A = amplifier(model.embedding_size, 1).to(torch_device_of(model)).requires_grad_(False)
        self.C_g: Payload = {}
        self.prototypes, self.known = table_of({}, model)

    def networks(self) -> Sequence[nn.Module]:
        return [self.model, self.A]

    def receive(self, payload: Payload) -> None:
        self.A = amplifier_from(payload, self.A).requires_grad_(False)
        self.C_g = {name: payload[name] for name in payload if name.startswith("classifier.")}
        if self.C_g:
            demand_arrays(payload, like(weights_of(self.H, "classifier")))
        if has_rows(payload):
            self.prototypes, self.known = table_of(payload, self.model)

    def run(self, ask: Ask) -> Payload:
        return self.mix() if ask.phase == "mix" else self.learn()

    def learn(self) -> Payload:
        if self.C_g and self.hyper.use_global_classifier:
            # Batch norms never leave a device.
            own_norms = weights_of(self.H, "classifier", keys_of_norms(self.H))
            load_weights(self.H, {**self.C_g, **own_norms}, "classifier")
        train(self.model, self.data, self.objective, self.hyper, self.generator("train"))
        means, counts = class_means(self.features(), self.data.y, self.model.classes)
        sent = sent_means(means, counts, self.hyper.least_samples, self.number)
        return {**sent, "prototypes": unit(sent["prototypes"])} if self.hyper.normalise_local_protos else sent

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        h, z = self.hyper, self.model.embed(x)  # [B, d]
        loss = F.cross_entropy(self.H(z), y)
        if h.use_kl:
            # A batch of one sample has no variance, so the running statistics are used.
            self.A.train(h.amplifier == "train" and len(y) > 1)
            loss = loss + h.mu * kl_with_uniform(self.A(z), direction=h.kl)
        if h.use_infonce:
            terms = z, y, self.prototypes, self.known, h.tau
            loss = loss + h.delta * prototype_infonce(*terms, form=h.infonce)
        return loss

    def mix(self) -> Payload:
        """Return the mixed features of eqs. 9-11, without those of classes that have too few samples.

        The prototypes of the device are still the means of these features, because the model has not changed since
        "train".
        """
        h, taken = self.hyper, self.taken()
        z, y = self.features()[taken], self.data.y[taken]
        alpha = mixing_share(h.alpha_low, h.alpha_high, h.alpha_round, self.generator("alpha"))
        mask = MASKS[h.mask](z.shape[1], h.beta, self.generator("mask")).to(z.device)
        r = mixed(z, y, self.prototypes, self.known, alpha)
        if h.noise:
            r = r + h.noise * torch.randn(r.shape, generator=self.generator("noise")).to(r.device)
        return {"features": mask * r, "labels": y}

    def taken(self) -> Tensor:
        """Return a mask [N_n] of the samples whose class has at least `least_samples` samples."""
        counts = self.data.y.bincount(minlength=self.model.classes)
        return (counts >= self.hyper.least_samples)[self.data.y]

    def features(self) -> Tensor:
        """Return z [N_n, d]."""
        if self.hyper.features == "eval":
            return embed(self.model, self.data.x)
        return embed_as_trained(self.model, self.data.x, self.hyper.batch)

    def other_rules(self) -> Mapping[str, nn.Module]:
        """Return the rule of the nearest prototype; nearness is the cosine, as in L_InfoNCE."""
        if not self.known.any():
            return {}
        return {"prototype": nearest_known(unit(self.prototypes), self.known, "cosine")}

    def state(self) -> Payload:
        own = {**weights_of(self.model), "prototypes": self.prototypes, "known": self.known}
        return snapshot(own)

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)
        torch_device = torch_device_of(self.model)
        self.prototypes, self.known = state["prototypes"].to(torch_device), state["known"].to(torch_device)


def classifier_of(model: Net, hyper: Hyper, seed: int) -> nn.Module:
    """Make H or C_g the head of the model, and return it; its first weights are the same on every machine."""
    if hyper.classifier == "paper":
        first = seeded(seed, "classifier").initial_seed()
        model.head = fedpall_classifier(model.embedding_size, model.classes, seed=first).to(
            torch_device_of(model)
        )
    return model.head


@torch.no_grad()
def embed_as_trained(model: Net, x: Tensor, size: int) -> Tensor:
    """Return embeddings [N, d], computed with the statistics of each batch, as in training.

    The model does not change: a copy of it computes the embeddings.
    """
    copy = deepcopy(model)
    return torch.cat([copy.train(len(part) > 1).embed(part) for part in torch.split(x, size)])


def cost(sizes: Sizes) -> Cost:
    """Return the cost with the paper's classifier.

    The cost applies to round 1, and to a round whose whole cohort took part in the previous round. In other rounds,
    the devices receive the K d numbers of the prototypes twice.
    """
    with torch.device("meta"):
        C_g, A = fedpall_classifier(sizes.D, sizes.C), amplifier(sizes.D, sizes.clients)
    held, n = sizes.held, sizes.examples
    labels, counts = eight_bytes(held + n), eight_bytes(held)
    up = {"prototypes": held * sizes.D, "labels": labels, "counts": counts, "features": n * sizes.D}
    known = {"prototypes": sizes.rows * sizes.D, "labels": eight_bytes(sizes.rows)}
    return Cost(up, {"classifier": parameters(C_g), "amplifier": parameters(A), **known})


METHOD = Method(
    "arXiv:2507.04781", Hyper, Server, Client,
    reports="personal", alike="head", other_rules=("prototype",), private="the model and its prototypes",
    arrays=(*HELD_ROWS, *FEATURES, "classifier", "amplifier"), cost=cost,
    averaged={"train": Averaged(rows="counts")}, individual_phases=("mix",),
)  # fmt: skip
