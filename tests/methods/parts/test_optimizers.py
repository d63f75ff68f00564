"""Tests that our optimizers equal those of torch.optim bit by bit, and that training imports no compiler."""

import subprocess
import sys

import pytest
import torch

from protofleet.methods.parts.optimizers import SGD, Adam, AdamW

PAIRS = {
    "plain": (lambda w: SGD(w, lr=0.3), lambda w: torch.optim.SGD(w, lr=0.3)),
    "momentum": (lambda w: SGD(w, lr=0.1, momentum=0.9), lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9)),
    "decay": (
        lambda w: SGD(w, lr=0.1, momentum=0.5, weight_decay=0.01),
        lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.5, weight_decay=0.01),
    ),
    "adam": (lambda w: Adam(w, lr=0.02), lambda w: torch.optim.Adam(w, lr=0.02)),
    "adam with a decay": (
        lambda w: Adam(w, lr=0.02, beta1=0.8, weight_decay=0.01),
        lambda w: torch.optim.Adam(w, lr=0.02, betas=(0.8, 0.999), weight_decay=0.01),
    ),
    "adamw": (lambda w: AdamW(w, lr=0.02), lambda w: torch.optim.AdamW(w, lr=0.02)),
}


def weights(seed=0):
    dice = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=dice).requires_grad_() for shape in ((3, 4), (4,), (2, 3, 3, 2))]


def steps(optimizer, ours, count, first=0):
    for k in range(first, first + count):
        dice = torch.Generator().manual_seed(k)
        optimizer.zero_grad()
        for number, w in enumerate(ours):
            if number != 1 or k % 3:  # The second weight takes no part in every third step.
                (w * torch.randn(w.shape, generator=dice)).sum().sin().backward()
        optimizer.step()


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_an_optimizer_computes_the_same_bits_as_that_of_torch(pair):
    ours, theirs = weights(), weights()
    steps(pair[0](ours), ours, 20)
    steps(pair[1](theirs), theirs, 20)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_restored_optimizer_continues_with_the_same_bits(pair):
    through, broken = weights(), weights()
    steps(pair[0](through), through, 12)
    first, second = pair[0](broken), pair[0](broken)
    steps(first, broken, 5)
    state = {**first.state("own"), "others.0.step": torch.ones(())}
    steps(second, weights(), 3)  # Collects a memory that `restore` must replace.
    second.restore(state, "own")
    steps(second, broken, 7, first=5)
    assert all(torch.equal(a, b) for a, b in zip(through, broken, strict=True))


def test_the_state_of_an_optimizer_is_a_copy_and_is_empty_after_forget():
    ours = weights()
    optimizer = Adam(ours, lr=0.1)
    steps(optimizer, ours, 1)
    state = optimizer.state("adam")
    before = {name: value.clone() for name, value in state.items()}
    steps(optimizer, ours, 2)
    assert all(torch.equal(before[name], state[name]) for name in state)
    optimizer.forget()
    assert optimizer.state("adam") == {}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_gradients_in_the_same_memory_give_the_same_bits_as_with_torch(pair):
    def trained(optimizer, two):
        for _ in range(3):
            optimizer.zero_grad()
            (two[0].view(-1) + two[1].view(-1)).sin().sum().backward()
            optimizer.step()
        return two

    ours, theirs = ([weights(seed)[0] for seed in (1, 2)] for _ in range(2))
    (ours[0].view(-1) + ours[1].view(-1)).sin().sum().backward()
    assert ours[0].grad.data_ptr() == ours[1].grad.data_ptr()  # Otherwise this test shows nothing.
    trained(pair[0](ours), ours)
    trained(pair[1](theirs), theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_step_removes_all_gradients(pair):
    ours = weights()
    steps(pair[0](ours), ours, 2)
    assert all(w.grad is None for w in ours)


TRAIN = """
import sys
import torch
from types import SimpleNamespace
from protofleet.methods.parts.local import LocalHyper, train
model = torch.nn.Linear(3, 2)
data = SimpleNamespace(x=torch.randn(8, 3), y=torch.randint(2, (8,)))
train(model, data, lambda x, y: model(x).square().mean(), LocalHyper(epochs=1), torch.Generator())
print(sorted(name for name in sys.modules if name in ("torch._dynamo", "torch._inductor", "sympy")))
"""


def test_local_training_does_not_import_the_compiler_of_torch():
    ran = subprocess.run([sys.executable, "-c", TRAIN], capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr
