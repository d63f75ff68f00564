"""The devices of the last masked sums survive a restart of the coordinator, and only the needed rows stay."""

from protofleet.coordinator.round.past_sums import PastSum
from protofleet.coordinator.spool.spool import Spool
from protofleet.coordinator.spool.sum_cohorts import SumCohortLedger
from protofleet.methods.contract.base import Member


def both(number, devices="abc"):
    return [PastSum(number, 0, stage, tuple(devices)) for stage in ("presence", "values")]


def test_the_sums_of_a_round_are_saved_with_the_next_round(tmp_path):
    spool = Spool(tmp_path)
    spool.start_run("r", "{}", 1)
    ledger = SumCohortLedger(spool.index)
    members = {"a": Member("a", 1, ())}
    for number in range(1, 7):
        ledger.store(both(number))
        ledger.store(both(number))  # A replay computes the same sums.
        spool.save(number + 1, 0, ["a"], members, {})
    ledger.store(both(7, "abd"))  # Nothing has committed this sum.
    spool.close()
    again = SumCohortLedger(Spool(tmp_path).index)
    rounds = sorted({one.round for one in again.stored})
    oldest = rounds[0]
    assert set(again.stored) == {one for number in range(oldest, 7) for one in both(number)}
    assert rounds[-1] == 6 and oldest > 1
