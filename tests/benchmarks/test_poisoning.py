"""The attackers in the measurement of [policy.robust] send the values that docs/robust.md states."""

import torch

from benchmarks.poisoning.__main__ import cells
from benchmarks.poisoning.attacks import ATTACKS, Seen, poisoned

BASE, OWN = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.0])
OTHERS = torch.tensor([[1.0, 2.5], [3.0, 2.5], [2.0, 4.0]])


def lie(name, number=1):
    others = [{"weights.a": row, "weights.running_var": row} for row in OTHERS]
    own = {"weights.a": OWN, "weights.running_var": OWN, "weights.n": torch.tensor(3)}
    return ATTACKS[name](Seen(number, {"weights.a": BASE, "weights.running_var": BASE}, own, others))


def prototypes(name, number):
    rows = {"labels": torch.tensor([0, 1]), "counts": torch.tensor([2, 2])}
    others = [{**rows, "prototypes": torch.tensor([[0.0, 0.0], [10.0, 10.0]])} for _ in range(3)]
    own = {**rows, "prototypes": torch.tensor([[1.0, 1.0], [2.0, 2.0]])}
    return ATTACKS[name](Seen(number, {}, own, others))["prototypes"]


def test_the_attackers_send_the_values_that_the_page_states():
    wanted = {
        "nobody": OWN, "label flip": OWN, "constant": torch.ones(2), "sign flip": BASE - 5 * (OWN - BASE),
        "scaling": BASE + 50 * (OWN - BASE), "reversed mean": BASE - 5 * (OTHERS.mean(0) - BASE),
        "ALIE": OTHERS.mean(0) - 1.5 * OTHERS.std(0),
    }  # fmt: skip
    for name, value in wanted.items():
        torch.testing.assert_close(lie(name)["weights.a"], value)
        assert bool((lie(name)["weights.running_var"] >= 0).all())
        assert int(lie(name)["weights.n"]) == 3


def test_prototypes_are_reversed_around_zero_and_drift_to_the_next_class():
    torch.testing.assert_close(prototypes("sign flip", 1), torch.tensor([[-5.0, -5.0], [-10.0, -10.0]]))
    torch.testing.assert_close(prototypes("drift", 1), torch.tensor([[2.0, 2.0], [8.0, 8.0]]))
    torch.testing.assert_close(prototypes("drift", 5), torch.tensor([[10.0, 10.0], [0.0, 0.0]]))


def test_a_poisoned_label_is_the_last_class_minus_the_true_class():
    assert poisoned(torch.tensor([0, 3, 9]), 10).tolist() == [9, 6, 0]


def test_the_cells_for_which_the_page_sets_bars_are_first():
    first = list(cells())[:60]
    assert {one.rule for one in first} == {"mean", "trimmed", "clip_median"}
    assert {one.seed for one in first} == {1, 2, 3, 4, 5} and len(set(first)) == 60
