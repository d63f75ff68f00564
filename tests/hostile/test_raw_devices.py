"""The test tools: raw devices, written from the protocol page, take part in a real run.

A real device takes part together with them.
"""

from pathlib import Path

import numpy as np

from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import Federation
from tests.hostile.wire import header_of

BOTH = Policy(quorum=2, gather=2)  # By default a run begins without a device that comes two seconds later.


def test_raw_devices_take_part_in_a_real_run_to_its_end(tmp_path):
    with Federation(tmp_path, "one", "two", policy=BOTH) as f:
        coordinator = f.coordinator()
        one, two = f.raw("one"), f.raw("two")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert one.finished.wait(20) and two.finished.wait(20)
        assert {v for v, _ in one.verdicts()} == {"accepted"}
        assert [line["round"] for line in f.rounds()] == [1, 2, 3, 4]
        assert all(line["participants"] == ["one", "two"] for line in f.rounds())


def test_a_raw_device_works_together_with_a_real_one_behind_a_broker_that_stores_all_frames(tmp_path):
    with Federation(tmp_path, "real", "raw", taken_over=True, rounds=2, policy=BOTH) as f:
        coordinator, real = f.coordinator(), f.device("real")
        raw = f.raw("raw")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert f.wait_for_end(real) == 0, f.last_words()
        raw.wait("finished")
        assert set(f.proxy.wills) == {"coordinator", "real", "raw"}
        assert header_of(f.proxy.wills["real"].data)["sequence"] == 0
        seen = f.proxy.frames("update", "real", down=False)
        assert {frame.header["round"] for frame in seen} == {1, 2, 3}
        assert not any(b"weights" in frame.data for frame in f.proxy.seen), "all updates are sealed"


def test_a_message_that_a_hostile_broker_drops_is_repeated(tmp_path):
    with Federation(tmp_path, "one", taken_over=True, rounds=1) as f:
        dropped = []

        def passes(frame):
            if frame.kind == "update" and not frame.down and not dropped:
                dropped.append(frame)
                return False
            return True

        f.proxy.passes = passes
        coordinator = f.coordinator()
        one = f.raw("one")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert dropped and len(f.proxy.frames("update", "one", down=False)) >= 3
        assert np.isclose(f.rounds()[-1]["accuracy"]["global"]["one"], 0.5) and one.finished.wait(20)


def test_the_documentation_names_each_scenario_file_and_quotes_one_of_them():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "hostile.md").read_text()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem != "__init__" and path.stem != "lies":
            assert path.name in page, f"{path.name} is not on the page"
    quoted = page.split("```python\n")[1].split("```")[0]
    assert quoted in Path(__file__).read_text()
