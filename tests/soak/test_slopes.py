"""What grows is found, what only trembles is not."""

import random

import pytest

from tests.soak.samples import of_folder, of_process
from tests.soak.slopes import slope


def made(growth, noise, n=1000, seed=0):
    dice = random.Random(seed)
    return list(range(n)), [100 + growth * i + dice.gauss(0, noise) for i in range(n)]


@pytest.mark.parametrize("seed", range(5))
def test_a_slope_lies_within_its_margin(seed):
    found = slope(*made(0.01, 2.0, seed=seed))
    assert abs(found.per_round - 0.01) < 2 * found.margin and not found.flat
    assert found.surely_over(5.0, 1000) and not found.surely_over(20.0, 1000)


def test_noise_alone_is_flat_as_often_as_it_should_be():
    flat = sum(slope(*made(0.0, 2.0, seed=seed)).flat for seed in range(200))
    assert 180 <= flat <= 198  # 95 % of 200 is 190


def test_what_fills_at_the_beginning_is_no_growth():
    rounds = list(range(1000))
    found = slope(rounds, [min(i, 90) for i in rounds])
    assert found.per_round == 0 and found.flat


def test_too_few_samples_are_said():
    with pytest.raises(ValueError, match="1 samples are too few"):
        slope([1.0], [1.0])


def test_a_process_and_a_folder_are_measured(tmp_path):
    import os

    before = of_process(os.getpid())
    with (tmp_path / "open").open("wb") as file:
        held = bytearray(30 << 20)
        held[:] = b"x" * len(held)
        file.write(b"12345")
        file.flush()
        after = of_process(os.getpid())
        assert after["handles"] == before["handles"] + 1
        assert after["memory, MB"] > before["memory, MB"] + 20
        assert of_folder(tmp_path) == 5
