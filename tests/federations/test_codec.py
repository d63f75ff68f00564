"""A federation whose devices code their updates: bytes, bits, restarts, and what a coordinator refuses."""

from dataclasses import replace

import numpy as np
import pytest

from protofleet.methods.contract.plan import Network
from protofleet.protocol.coding.update import encode_arrays
from protofleet.protocol.link.meter import UP
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.reasons import Reason
from tests.support.few_methods import FEW_STEPS, few, of_each_shape
from tests.support.lying_device import add_liar
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import assert_same, plan, restart_in_each_round, simulation

TERNARY = CodecStage("ternary", "broadcast", keep=10, feedback=True)
RICE = CodecStage("rice", "broadcast", feedback=True)
UINT4 = CodecStage("uint4", pack=True)
POLICY = RunPolicy(rounds=2, quorum=3, cohort=0, patience_seconds=20.0, grace_seconds=3.0, settle_seconds=1.0)
STAGES = {
    "fedavg": {"weights": TERNARY},
    "fedlsa": {"weights": RICE},
    "fedproto": {"prototypes": UINT4},
    "fedpall": {"features": UINT4, "prototypes": CodecStage("int8")},
    "fedplcc": {"weights": RICE, "prototypes": UINT4},
    "fedprox": {"weights": CodecStage("float16", "broadcast")},
    "moon": {"weights": CodecStage("int4", "broadcast", feedback=True, rounding="stochastic")},
}


def coded(folder, method, stages, hyper=FEW_STEPS, **more):
    """Return a simulation of the method with these stages, and a network with arrays that are not small."""
    run = simulation(folder, method, hyper=hyper, **more)
    made = replace(run.plan, network=Network("mlp", 40), codec=CodecSettings(stages) if stages else None)
    return again(run, made, folder)


def again(run, made, folder):
    return type(run)(made, run.shards, run.policy, folder / "coded", run.conditions, run.seed)


def sent(run):
    """Return the bytes of arrays that all devices have sent, as the coordinator counts them."""
    meter = run.service.run.link.meter
    return sum(n for (direction, _), n in meter.payload.items() if direction == UP)


@pytest.mark.parametrize("method", of_each_shape(STAGES))
def test_coded_updates_take_fewer_bytes_and_both_ends_count_the_same(tmp_path, method):
    plain = coded(tmp_path / "plain", method, None).run()
    run = coded(tmp_path / "run", method, STAGES[method]).run()
    assert sent(run) < 0.6 * sent(plain), (sent(run), sent(plain))
    assert not run.service.run.link.meter.rejected
    by_devices = sum(n for a in run.agents.values() for (d, _), n in a.link.meter.payload.items() if d == UP)
    assert by_devices == sent(run)


@pytest.mark.parametrize(
    "method", [m if m == "fedavg" else pytest.param(m, marks=pytest.mark.slow) for m in STAGES]
)
def test_restarts_of_all_parties_in_each_round_change_no_bit(tmp_path, method):
    whole = coded(tmp_path / "whole", method, STAGES[method]).run()
    run = coded(tmp_path / "run", method, STAGES[method])
    restart_in_each_round(run)
    assert_same(whole, run.run())


def test_a_device_without_the_form_codec_is_refused_in_one_line(tmp_path, monkeypatch):
    run = coded(tmp_path, "fedavg", STAGES["fedavg"])
    monkeypatch.setattr(forms, "DEVICE_FORMS", tuple(f for f in forms.DEVICE_FORMS if f != forms.CODEC))
    run.kill("device-2")
    run.boot_device("device-2")
    run.run(until=lambda: run.agents["device-2"].finished)
    assert "it does not know codec" in run.agents["device-2"].view.problem
    assert "bring the device up to date" in run.agents["device-2"].view.problem


# -- what the coordinator refuses


class Lying:
    """A run with a liar that codes an honest update and then changes its arrays."""

    def __init__(self, folder, change):
        self.run, self.change = coded(folder, "fedavg", STAGES["fedavg"], policy=POLICY), change
        self.liar = add_liar(self.run, "liar", answers=self.answer, hello={"can": [forms.CODEC]})

    def answer(self, liar, place):
        number, phase, base = place
        shown = self.run.service.run.spool.broadcasts.open(base)
        if phase != "train":
            liar.update(place, {})
            return
        after = {name: np.array(shown[name]) + np.float32(0.1) for name in shown}
        plan = self.run.plan
        arrays = encode_arrays(after, plan.codec.up, shown, {}, lambda kind: np.random.default_rng(0)).arrays
        liar.update(place, self.change(arrays))


def bundle(change):
    """Change the bytes of the bundle."""

    def apply(arrays):
        return {"weights.~": np.frombuffer(change(arrays["weights.~"].tobytes()), np.uint8)}

    return apply


BROKEN = {
    "cut short": (bundle(lambda data: data[:-1]), Reason.BAD_BODY),
    "longer": (bundle(lambda data: data + b"\0"), Reason.BAD_BODY),
    "another version": (bundle(lambda data: b"\2" + data[1:]), Reason.BAD_BODY),
    "empty": (bundle(lambda data: b""), Reason.BAD_BODY),
    "nothing at all": (lambda arrays: {}, Reason.WRONG_ARRAYS),
    "not bytes": (lambda arrays: {"weights.~": np.zeros(5, np.float32)}, Reason.BAD_BODY),
    "not a row": (lambda arrays: {"weights.~": np.zeros((2, 5), np.uint8)}, Reason.BAD_BODY),
    "an additional array": (
        lambda arrays: {**arrays, "weights.more": np.zeros(3, np.float32)},
        Reason.WRONG_ARRAYS,
    ),
    "too large": (lambda arrays: {"weights.~": np.zeros(1 << 20, np.uint8)}, Reason.TOO_LARGE),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_damaged_bundle_is_refused_with_its_reason_and_the_run_ends(tmp_path, fault):
    change, reason = BROKEN[fault]
    made = Lying(tmp_path, change)
    made.run.run()
    assert made.run.service.finished
    rejected = made.run.service.run.link.meter.rejected
    assert rejected[reason] and set(rejected) == {reason}, dict(rejected)
    verdicts = [
        fields for kind, fields in made.liar.heard if kind == "receipt" and fields["verdict"] == "refused"
    ]
    assert verdicts and verdicts[0]["reason"]


def test_an_update_of_an_honest_client_with_a_codec_is_accepted(tmp_path):
    made = Lying(tmp_path, lambda arrays: arrays)
    made.run.run()
    assert not made.run.service.run.link.meter.rejected
    verdicts = {fields["verdict"] for kind, fields in made.liar.heard if kind == "receipt"}
    assert verdicts == {"accepted"}


def test_a_task_names_the_last_used_update_of_its_device(tmp_path):
    made = Lying(tmp_path, lambda arrays: arrays)
    made.run.run()
    told = [fields.get("took") for kind, fields in made.liar.heard if kind == "task"]
    rounds = made.run.plan.rounds
    assert told[: rounds + 1] == [None, *([number, "train"] for number in range(1, rounds + 1))]


def test_the_plan_of_a_run_without_a_codec_does_not_name_a_codec():
    made = plan("fedavg")
    assert b"codec" not in made.encode()
    assert b"codec" in replace(made, codec=CodecSettings({"weights": RICE})).encode()


@pytest.mark.parametrize("method", few(["fedavg", "fedprox", "fedproto", "moon"], 2))
def test_updates_that_are_not_finite_end_a_run_with_and_without_a_codec(tmp_path, method):
    """A coordinator that refused these updates for their size would not notice that the training has diverged."""
    found = []
    for stages in (None, STAGES[method]):
        run = coded(
            tmp_path / str(bool(stages)), method, stages, hyper={"lr": 1000.0, "epochs": 30}, policy=POLICY
        )
        run.run(until=lambda r=run: bool(r.service.run.diverged) or r.service.finished)
        rejected = {reason for reason, number in run.service.run.link.meter.rejected.items() if number}
        found.append((bool(run.service.run.diverged), rejected))
    assert found[0] == found[1] and found[0][0]
