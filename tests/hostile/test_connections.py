"""A broker that sends impossible packets: each is counted, and all of them cost one log line an hour."""

from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.wire.names import COORDINATOR
from tests.hostile.federation import Federation

SUBACK = 9
RULES = Policy(quorum=1, gather=1, straggler_factor=0.0)


def acknowledges_no_topic(party, packet):
    """Turn a SUBACK of the coordinator into one without a code for any topic."""
    if party != COORDINATOR or packet[0] >> 4 != SUBACK:
        return packet
    return bytes([SUBACK << 4, 3]) + packet[2:4] + b"\0"


def test_broker_packets_that_cause_internal_errors_are_counted_and_logged_once(tmp_path):
    with Federation(tmp_path, "one", taken_over=True, rounds=1, policy=RULES) as f:
        f.proxy.alters = acknowledges_no_topic
        coordinator = f.coordinator()

        def errors():
            return f.answers() and f.metrics()["protofleet_connection_errors_total"]

        # A connection that breaks before its SUBACK causes no error. The sixth cut would end the coordinator.
        for number in range(1, 6):
            f.wait_until(lambda n=number: errors() >= n, f"error {number}")
            f.proxy.cut(COORDINATOR)
        f.proxy.alters = lambda party, packet: packet
        f.raw("one")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        log = f.log_of(coordinator)
        assert log.count("Traceback") == 1, log[-3000:]
        assert len(log) < 20_000
