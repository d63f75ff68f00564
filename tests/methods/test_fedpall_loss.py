"""Tests of FedPall's loss on a device: equation 8 in all its readings is finite for all inputs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofleet.methods.contract.base import Ask
from protofleet.methods.maths.adversary import kl_with_uniform, prototype_infonce
from protofleet.methods.parts.local import embed
from tests.methods.fedpall_halves import (
    C,
    D,
    client_of,
    rows,
    sure,
    told,
)
from tests.methods.fedpall_halves import narrow as narrow
from tests.methods.tiny import normal


def naive_kl(scores, direction):
    """Compute the mean divergence one sample at a time, from probabilities."""
    found = []
    for row in scores.double().detach():
        p = [math.exp(s) / sum(math.exp(t) for t in row.tolist()) for s in row.tolist()]
        if direction == "paper":
            found.append(sum(q * math.log(len(p) * q) for q in p))
        else:
            found.append(sum(1 / len(p) * math.log(1 / len(p) / q) for q in p))
    return sum(found) / len(found)


def naive_infonce(z, y, prototypes, tau, form):
    """Compute InfoNCE with prototypes {class: row}; samples of other classes are left out."""

    def cosine(a, b):
        return float(a.double() @ b.double() / (a.double().norm() * b.double().norm()))

    def against(a, b):
        return cosine(a, b) * (float(b.double().norm()) if form == "code" else 1.0)

    found = []
    for row, label in zip(z.detach(), y.tolist(), strict=True):
        if label in prototypes:
            others = [c for c in prototypes if form != "paper" or c != label]
            total = sum(math.exp(against(row, prototypes[c]) / tau) for c in others)
            found.append(math.log(total) - cosine(row, prototypes[label]) / tau)
    return sum(found) / max(len(found), 1)


@pytest.mark.parametrize("use_kl, use_infonce", [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("kl, infonce", [("paper", "standard"), ("reverse", "paper"), ("paper", "code")])
@pytest.mark.parametrize("labels", [(0, 1, 2), (1, 2)])
def test_the_loss_of_a_device_is_equation_8(use_kl, use_infonce, kl, infonce, labels):
    switches = {"use_kl": use_kl, "use_infonce": use_infonce, "kl": kl, "infonce": infonce}
    A = sure(4)
    client = told(client_of(mu=0.9, delta=0.4, tau=0.5, **switches), rows()[: len(labels)], labels, A)
    client.model.eval()
    x, y = client.data.x, client.data.y
    z = client.model.embed(x).detach()
    own = dict(zip(labels, rows(), strict=False))
    expected = float(F.cross_entropy(client.model.head(z), y).detach())
    expected += 0.9 * naive_kl(A(z), kl) if use_kl else 0.0
    expected += 0.4 * naive_infonce(z, y, own, 0.5, infonce) if use_infonce else 0.0
    assert float(client.objective(x, y).detach()) == pytest.approx(expected, abs=1e-5)


def test_the_loss_before_the_first_broadcast_is_cross_entropy():
    client = client_of()
    client.model.eval()
    x, y = client.data.x, client.data.y
    assert_close(client.objective(x, y), F.cross_entropy(client.model(x), y))


@pytest.mark.parametrize("form", ["standard", "paper", "code"])
def test_infonce_with_at_most_one_known_class_has_no_gradient(form):
    z, y = normal(4, D).requires_grad_(), torch.tensor([0, 0, 2, 1])
    for known in ([True, False, False], [False, False, False]):
        loss = prototype_infonce(z, y, normal(C, D, seed=1), torch.tensor(known), 0.5, form=form)
        slope = torch.autograd.grad(loss, z)[0]
        assert loss.isfinite() and slope.isfinite().all()
        assert form == "code" or (float(loss.detach()) == pytest.approx(0.0, abs=1e-12) and not slope.any())


def test_a_row_of_an_unknown_class_is_never_read():
    z, y, known = normal(5, D), torch.tensor([0, 1, 2, 2, 0]), torch.tensor([True, False, True])
    prototypes = normal(C, D, seed=1)
    expected = prototype_infonce(z, y, prototypes, known, 0.5)
    prototypes[1] = math.nan
    assert_close(prototype_infonce(z, y, prototypes, known, 0.5), expected)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_amplifier_is_frozen_and_uses_the_statistics_of_its_setting(mode):
    A = sure(4)
    client = told(client_of(amplifier=mode, use_infonce=False), A=A)
    client.model.eval()
    x, y = client.data.x, client.data.y
    client.objective(x, y).backward()
    assert all(w.grad is None for w in client.A.parameters())
    assert all(w.grad is not None for w in client.model.parameters())
    A.train(mode == "train")
    z = client.model.embed(x).detach()
    expected = float(F.cross_entropy(client.model(x), y).detach()) + 0.7 * naive_kl(A(z), "paper")
    told(client, A=sure(4))
    assert float(client.objective(x, y).detach()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kl", ["paper", "reverse"])
def test_the_adversarial_loss_makes_devices_harder_to_distinguish(kl):
    A = sure(2)

    def sureness(**changes):
        client = told(client_of(epochs=20, kl=kl, **changes), A=A)
        client.run(Ask("train"))
        return float(kl_with_uniform(A(embed(client.model, client.data.x))).detach())

    assert 2 * sureness(mu=2.0) < sureness(use_kl=False)


def test_infonce_moves_features_towards_their_prototypes():
    def gap(**changes):
        client = told(client_of(epochs=20, tau=0.2, **changes), rows(3))
        client.run(Ask("train"))
        z = embed(client.model, client.data.x)
        return float(prototype_infonce(z, client.data.y, rows(3), client.known, 0.2))

    assert 2 * gap(delta=1.0) < gap(use_infonce=False)


FORMS = ("standard", "paper", "code")


DTYPES = (torch.float16, torch.float32, torch.float64)


@given(
    st.integers(0, 2**20),
    st.sampled_from(DTYPES),
    st.sampled_from((0.0, 1e-3, 1.0, 1e3)),
    st.lists(st.booleans(), min_size=C, max_size=C),
)
@settings(max_examples=60, deadline=None)
def test_losses_and_gradients_are_finite_for_all_features(seed, dtype, scale, known):
    z = (scale * normal(5, D, seed=seed)).to(dtype).requires_grad_()
    z.data[0] = 0.0
    y, prototypes = torch.tensor([0, 1, 2, 0, 1]), scale * rows(seed + 1)
    found = [kl_with_uniform(z, direction=d) for d in ("paper", "reverse")]
    found += [prototype_infonce(z, y, prototypes, torch.tensor(known), 0.1, form=f) for f in FORMS]
    for loss in found:
        (slope,) = torch.autograd.grad(loss, z)
        assert loss.isfinite() and slope.isfinite().all()
    assert all(loss >= -1e-6 for loss in found[:2])


def test_the_divergence_is_zero_for_equal_outputs_and_for_one_device():
    for logits in (torch.full((4, 3), 7.0), normal(4, 1)):
        for direction in ("paper", "reverse"):
            loss = kl_with_uniform(logits.requires_grad_(), direction=direction)
            assert loss.detach().abs() < 1e-6 and torch.autograd.grad(loss, logits)[0].abs().max() < 1e-6
    sure = torch.tensor([[1e4, -1e4, 0.0]], dtype=torch.float16)
    assert float(kl_with_uniform(sure)) == pytest.approx(math.log(3))
