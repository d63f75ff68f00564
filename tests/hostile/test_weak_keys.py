"""A run continues without a device that was enrolled with keys of small order before there was a check."""

import time

from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.security.records import RECORD
from protofleet.protocol.security.statements import Writer, armoured, sign_statement
from tests.hostile.federation import Federation
from tests.support.small_order import RECEIVE, SIGN


def enrol_weakly(federation, name, sign, receive):
    """Write the record that an earlier release would issue; the broker's certificate is good."""
    now = int(time.time())
    fields = Writer().text(federation.name).text(name).text("device").blob(sign).blob(receive)
    body = fields.number(7).number(now - 60).number(now + 3600).done()
    path = federation.fleet.root / "records" / f"{name}.record"
    path.write_text(armoured(RECORD, sign_statement(RECORD, body, federation.fleet.authority().keys)))


def test_records_with_keys_of_small_order_stop_only_their_own_devices(tmp_path):
    both = Policy(quorum=2, gather=2)
    with Federation(tmp_path, "one", "two", "open", "forged", rounds=2, policy=both) as f:
        weak = []
        for name in ("open", "forged"):
            who = f.credentials(name)
            sign, receive = (k.public_key().public_bytes_raw() for k in (who.sign, who.receive))
            weak.append(f.raw(name, again=0.2))
            enrol_weakly(f, name, *((sign, RECEIVE[0]) if name == "open" else (SIGN[2], receive)))
        coordinator = f.coordinator()
        for device in weak:
            words = f"{device.name} is not known here"
            f.wait_until(lambda w=words: w in f.log_of(coordinator), f"{device.name} to be refused")
        one, two = f.raw("one"), f.raw("two")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert one.finished.wait(20) and two.finished.wait(20)
        assert not [h for device in weak for h in device.heard if h.kind == "welcome"]
        assert [line["participants"] for line in f.rounds()] == [["one", "two"]] * 3
        said = [line for line in f.log_of(coordinator).splitlines() if "is not known here" in line]
        assert len(said) == 2 and all("small order" in s and "make new keys" in s for s in said), said
