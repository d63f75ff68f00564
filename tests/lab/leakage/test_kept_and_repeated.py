"""A run of real processes keeps the same answers, bit for bit, as a repetition of its experiment."""

import pytest

from protofleet.lab.leakage.kept_answers import kept_folder, read_kept
from protofleet.lab.leakage.repeated import repeated
from protofleet.lab.local.experiment import Experiment, experiment_table
from protofleet.protocol.settings.reader import decode
from protofleet.protocol.wire.arrays import encode
from tests.lab.local.test_run import protofleet

EXPERIMENT = """
name = "small"
rounds = 3
[method]
name = "{method}"
epochs = 1
[network]
name = "cnn4"
[data]
source = "digits"
samples = 60
test_samples = 20
size = 16
[devices]
count = 3
[keep]
answers = [1, "last"]
"""


def bytes_of(observed):
    """Return the bytes of all broadcasts and answers, and the stated numbers of samples."""
    return {
        (one.number, one.phase, one.device): (
            *(b"".join(map(bytes, encode(arrays))) for arrays in (one.broadcast, one.answer)), one.examples,
        )
        for one in observed.exchanges
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("method", "phases"), [("fedpall", 2), ("fedhp", 1)])
def test_kept_answers_are_equal_to_those_of_the_repeated_experiment(tmp_path, method, phases):
    (tmp_path / "small.toml").write_text(EXPERIMENT.format(method=method))
    done = protofleet("run", "small.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "small"
    kept = read_kept(kept_folder(run))
    again = repeated(decode(Experiment, experiment_table(run / "experiment.toml"))).observed
    assert len(kept.exchanges) == 2 * phases * 3 and {one.number for one in kept.exchanges} == {1, 3}
    assert bytes_of(kept) == bytes_of(again) and kept.counts == again.counts
