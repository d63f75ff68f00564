"""A device that was enrolled with keys of small order, before anybody looked: the run goes on without it."""

import time

import pytest

from protocol.records import RECORD
from protocol.statements import Writer, armoured, state
from tests.hostile.federation import Federation
from tests.small_order import RECEIVE, SIGN


def enrol_weakly(federation, name, sign, receive):
    """The record that an earlier release issued; the broker's certificate is good."""
    now = int(time.time())
    fields = Writer().text(federation.name).text(name).text("device").blob(sign).blob(receive)
    body = fields.number(7).number(now - 60).number(now + 3600).done()
    path = federation.fleet.root / "records" / f"{name}.record"
    path.write_text(armoured(RECORD, state(RECORD, body, federation.fleet.authority().keys)))


@pytest.mark.parametrize("key", ["receive", "sign"])
def test_a_record_with_a_key_of_small_order_stops_nobody_but_its_own_device(tmp_path, key):
    with Federation(tmp_path, "one", "two", "weak", rounds=2) as f:
        who = f.credentials("weak")
        sign, receive = (k.public_key().public_bytes_raw() for k in (who.sign, who.receive))
        weak = f.raw("weak", again=0.2)
        enrol_weakly(f, "weak", *((sign, RECEIVE[0]) if key == "receive" else (SIGN[2], receive)))
        coordinator = f.coordinator()
        f.wait_until(lambda: "weak is not known here" in f.log_of(coordinator), "its hello to be refused")
        one, two = f.raw("one"), f.raw("two")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert one.finished.wait(20) and two.finished.wait(20)
        assert not [h for h in weak.heard if h.kind == "welcome"]
        assert [line["participants"] for line in f.rounds()] == [["one", "two"]] * 3
        said = [line for line in f.log_of(coordinator).splitlines() if "weak is not known here" in line]
        assert len(said) == 1 and "small order" in said[0] and "make new keys" in said[0], said
