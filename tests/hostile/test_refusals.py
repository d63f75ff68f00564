"""Whatever a device gets wrong is refused, counted and said; the run goes on beside it."""

import numpy as np

from coordinator.config import Rules
from tests.hostile.device import Answer, honest
from tests.hostile.federation import Federation

SHORT = Rules(quorum=1, gather=2, patience_seconds=4.0, grace_seconds=1.0)


def not_finite(task):
    if task.round == 1:
        return Answer({name: np.full_like(value, np.nan) for name, value in task.arrays.items()})
    return honest(task)


def test_a_refused_answer_is_in_every_record_and_the_run_goes_on(tmp_path):
    with Federation(tmp_path, "liar", "neighbour", rounds=2, policy=SHORT) as f:
        coordinator = f.coordinator()
        liar, neighbour = f.raw("liar", not_finite), f.raw("neighbour")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        (_, words), *_ = liar.verdicts()
        assert words.endswith("is not finite") and neighbour.finished.wait(20)
        assert f.rounds()[0]["dropped"] == {"liar": words}
        assert f.ledger("SELECT json_extract(details, '$.reason') FROM moments WHERE what = 'dropped'")[
            0
        ] == (words,)
        assert [line["participants"] for line in f.rounds()[1:]] == [["liar", "neighbour"]] * 2
        assert words in f.log_of(coordinator), "--events shows it as well"
        assert "Traceback" not in f.log_of(coordinator)
