"""Check that a network has all the properties that methods rely on."""

from __future__ import annotations

import torch
from torch import nn

from protofleet.lab.contract.worlds import CLASSES, ContractError, Subject, require
from protofleet.methods.contract.plan import Network
from protofleet.methods.nets import catalog
from protofleet.methods.nets.base import Net
from protofleet.methods.nets.catalog import Recipe, recipe_of

# The checks try samples up to this size. The size of a picture is the length of its side in pixels, and the size of
# a series is its number of steps.
MOST: int = 256


def sample_for(recipe: Recipe) -> tuple[int, ...]:
    """Return the shape of a small sample that a network accepts.

    Each side has at least 8 points, as in the other checks. If the network accepts different numbers of axes, the
    shape has the largest number of them.
    """
    side, channels, rank = max(recipe.smallest, 8), recipe.channels or 3, max(recipe.ranks)
    require(side <= MOST, f"smallest is {recipe.smallest}, over the {MOST} that are tried")
    return {1: (channels * side,), 2: (channels, side), 3: (channels, side, side)}[rank]


def built(network: Network, seed: int = 1, feature_size: int | None = None) -> Net:
    recipe = recipe_of(network.name, network.plugin)
    return catalog.build(
        network.name, classes=CLASSES, image=sample_for(recipe), feature_size=feature_size, seed=seed,
        plugin=network.plugin,
    )  # fmt: skip


def pictures(network: Network, number: int) -> torch.Tensor:
    sample = sample_for(recipe_of(network.name, network.plugin))
    return torch.randn(number, *sample, generator=torch.Generator().manual_seed(3))


def is_made_alike(network: Network) -> None:
    """Require that the same seed gives the same weights on every device and on the coordinator."""
    one, again, other = built(network), built(network), built(network, seed=2)
    same = all(torch.equal(v, again.state_dict()[k]) for k, v in one.state_dict().items())
    require(
        same,
        "two networks with the same seed have different weights; only torch's initialisers may use random numbers",
    )
    if any(p.numel() > 1 for p in one.parameters()):
        changed = any(not torch.equal(v, other.state_dict()[k]) for k, v in one.state_dict().items())
        require(changed, "networks of two seeds have the same weights")


def has_its_sizes(network: Network) -> None:
    model = built(network).eval()
    for number in (1, 5):
        x = pictures(network, number)
        with torch.no_grad():
            features, embedding, scores = model.features(x), model.embed(x), model(x)
        for what, found, size in (
            ("features", features, model.feature_size), ("embed", embedding, model.embedding_size),
            ("the network", scores, CLASSES),
        ):  # fmt: skip
            require(
                tuple(found.shape) == (number, size),
                f"{what} gives {list(found.shape)} for {number} samples, it must be [{number}, {size}]",
            )
        require(bool(scores.isfinite().all()), "its scores are no finite numbers")


def heeds_feature_size(network: Network) -> None:
    """Require that a network has the feature size from the settings.

    With the setting network.feature_size, devices with different networks get embeddings of the same size.
    """
    model = built(network, feature_size=12)
    require(model.feature_size == 12, f"feature_size = 12 gives a network of {model.feature_size} features")
    has = model.eval().features(pictures(network, 2)).shape[1]
    require(has == 12, f"feature_size = 12 gives features of {has} numbers")


def learns_from_a_batch(network: Network) -> None:
    model = built(network).train()
    x, y = pictures(network, 6), torch.arange(6) % CLASSES
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    unused = [
        name for name, p in model.named_parameters() if p.grad is None and not name.startswith("projector")
    ]
    require(not unused, f"no gradient reaches {', '.join(unused[:3])}")
    require(losses[-1] < losses[0], f"12 steps take the loss from {losses[0]:.3f} to {losses[-1]:.3f}")


def has_a_form_without_memory(network: Network) -> None:
    """Require that a network can be made on torch's meta device, which allocates no memory.

    A device makes the network of a plan in this way to compute how much memory it needs, before it accepts
    the plan.
    """
    try:
        with torch.device("meta"):
            sizes = {k: tuple(v.shape) for k, v in built(network).state_dict().items()}
    except (RuntimeError, NotImplementedError) as error:
        raise ContractError(
            f"the network cannot be made on torch's meta device, which allocates no memory: {error}"
        ) from error
    real = {k: tuple(v.shape) for k, v in built(network).state_dict().items()}
    require(sizes == real, "made without memory, its weights have other shapes")


def runs_in_a_federation(network: Network) -> Subject:
    """Return a subject that runs this network with FedAvg."""
    return Subject("fedavg", network=network)
