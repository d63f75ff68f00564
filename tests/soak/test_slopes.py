"""Growth is found, and noise alone is not."""

import random
import subprocess
import sys

import pytest

from tests.soak.samples import of_folder, of_process
from tests.soak.slopes import slope


def made(growth, noise, n=1000, seed=0):
    dice = random.Random(seed)
    return list(range(n)), [100 + growth * i + dice.gauss(0, noise) for i in range(n)]


@pytest.mark.parametrize("seed", range(5))
def test_the_true_growth_lies_within_the_margin_of_the_slope(seed):
    found = slope(*made(0.01, 2.0, seed=seed))
    assert abs(found.per_round - 0.01) < 2 * found.margin and not found.flat
    assert found.surely_over(5.0, 1000) and not found.surely_over(20.0, 1000)


def test_noise_without_growth_is_flat_in_95_percent_of_cases():
    flat = sum(slope(*made(0.0, 2.0, seed=seed)).flat for seed in range(200))
    assert 180 <= flat <= 198  # The expected number is 190, which is 95 % of 200.


def test_growth_that_ends_after_90_of_1000_rounds_counts_as_flat():
    rounds = list(range(1000))
    found = slope(rounds, [min(i, 90) for i in rounds])
    assert found.per_round == 0 and found.flat


def test_a_slope_of_one_sample_is_refused():
    with pytest.raises(ValueError, match="1 samples are too few"):
        slope([1.0], [1.0])


HOLDS = """
import sys
print("up", flush=True)
sys.stdin.readline()
file, held = open(sys.argv[1], "wb"), b"x" * (30 << 20)
file.write(b"12345")
file.flush()
print("holds", flush=True)
sys.stdin.readline()
"""


def test_the_resources_of_a_process_and_the_bytes_of_a_folder_are_measured(tmp_path):
    """The test starts a process, because threads and files of other tests end in this one."""
    (tmp_path / "folder").mkdir()
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "folder" / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        before = of_process(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "holds\n"
        after = of_process(process.pid)
        process.kill()
    assert after["handles"] == before["handles"] + 1 and after["threads"] == before["threads"] == 1
    assert after["memory, MB"] > before["memory, MB"] + 20
    assert of_folder(tmp_path) == 5
