"""A run with a lossless codec: the bits of a run without a codec, fewer bytes, and devices without the form codec."""

from dataclasses import replace

import pytest

from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.edge_client.conversation import hello
from protofleet.methods.contract.plan import Network
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from protofleet.protocol.settings.named_codecs import written_codec
from protofleet.protocol.wire import forms
from tests.support.few_methods import FEW_STEPS
from tests.support.small_federation import assert_same, restart_in_each_round, simulation

CNN = Network("cnn_bn")
# The heads of arrays in a bundle count as bytes of arrays. Without a codec, the table in their place is control.
HEADS = 1.02
WELCOMES = 200  # The bytes of the name of the codec in all welcomes together.


# One phase, small arrays, two phases, and updates of different sizes. The quick tests have the first.
SLOW = pytest.mark.slow
SHAPES = ["fedavg", *(pytest.param(name, marks=SLOW) for name in ("fedproto", "fedpall", "fedplcc"))]


def simulated(folder, method, codec, network=None, hyper=FEW_STEPS, **more):
    run = simulation(folder, method, hyper=hyper, **more)
    made = replace(run.plan, network=network) if network else run.plan
    return again(run, made.with_codec(codec), folder)


def again(run, made, folder):
    return type(run)(made, run.shards, run.policy, folder / "again", run.conditions, run.seed)


def sent(part, way):
    """Return the bytes of arrays that this end has counted in one direction."""
    return sum(n for (direction, _), n in part.meter.payload.items() if direction == way)


def crossed(run, way):
    """Return all bytes that the coordinator has counted in one direction."""
    return sum(n for (direction, _), n in run.service.run.link.meter.wire.items() if direction == way)


@pytest.mark.parametrize(
    "method", ["fedavg", pytest.param("fedlsa", marks=SLOW)]
)  # FedLSA broadcasts anchors with the weights.
def test_the_first_weights_are_not_sent_and_integers_are_packed(tmp_path, method):
    plain = simulated(tmp_path / "plain", method, "off", CNN).run()
    run = simulated(tmp_path / "run", method, None, CNN).run()
    assert_same(plain, run)
    broadcasts = run.plan.rounds + 1
    assert (
        sent(run.service.run.link, DOWN)
        <= HEADS * sent(plain.service.run.link, DOWN) * (broadcasts - 1) / broadcasts
    )
    assert crossed(run, UP) < crossed(plain, UP)
    assert not run.service.run.link.meter.rejected


def test_arrays_that_have_not_changed_are_not_sent_again(tmp_path):
    """With this learning rate, only biases and the statistics of batch norm change."""
    found = {}
    for codec in ("off", None):
        found[codec] = simulated(
            tmp_path / f"{codec}", "fedavg", codec, CNN, hyper={**FEW_STEPS, "lr": 1e-30}
        ).run()
    assert_same(found["off"], found[None])
    for way in (UP, DOWN):
        assert sent(found[None].service.run.link, way) < 0.1 * sent(found["off"].service.run.link, way)


@pytest.mark.parametrize("method", SHAPES)
def test_restarts_of_all_parties_in_each_round_change_no_bit(tmp_path, method):
    whole = simulated(tmp_path / "whole", method, "off").run()
    run = simulated(tmp_path / "run", method, "lossless")
    restart_in_each_round(run)
    assert_same(whole, run.run())


@pytest.mark.parametrize("method", SHAPES)
def test_the_bytes_before_coding_equal_the_bytes_of_a_run_without_a_codec(tmp_path, method):
    lines = {}
    for codec in ("off", None):
        run, file = simulated(tmp_path / f"{codec}", method, codec), RoundsFile(tmp_path / f"{codec}.jsonl")
        keep_journal(run.service.run, [file])
        run.run()
        lines[codec] = file.records
    assert [line["uncoded"] for line in lines[None]] == [line["payload"] for line in lines["off"]]
    assert [line["pooled"] for line in lines[None]] == [line["pooled"] for line in lines["off"]]
    assert all(line["uncoded"] == {} for line in lines["off"])


def reads_no_codec(monkeypatch, *old):
    """Let the devices `old` say hello as devices of an earlier version do."""
    made = hello.hello_of

    def earlier(name, *rest):
        message = made(name, *rest)
        can = tuple(form for form in message.can if form != forms.CODEC or name not in old)
        return replace(message, can=can)

    monkeypatch.setattr(hello, "hello_of", earlier)


@pytest.mark.parametrize("method", SHAPES)
def test_a_device_without_the_form_codec_gets_and_sends_uncoded_arrays(tmp_path, method, monkeypatch):
    plain = simulated(tmp_path / "plain", method, "off").run()
    reads_no_codec(monkeypatch, "device-2")
    run = simulated(tmp_path / "run", method, None).run()
    assert_same(plain, run)
    assert not run.service.run.link.meter.rejected
    for way in (UP, DOWN):
        assert sent(run.agents["device-2"].link, way) == sent(plain.agents["device-2"].link, way)
        assert sent(run.agents["device-0"].link, way) <= HEADS * sent(plain.agents["device-0"].link, way)
        assert crossed(run, way) < crossed(plain, way) + WELCOMES


@pytest.mark.parametrize(("before", "after"), [(None, "off"), ("off", None), ("lossless", None)])
@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedplcc", marks=SLOW)])
def test_a_coordinator_that_restarts_with_another_codec_changes_no_bit(tmp_path, method, before, after):
    whole = simulated(tmp_path / "whole", method, "off").run()
    run = simulated(tmp_path / "run", method, before)
    bare = simulation(tmp_path / "bare", method, hyper=FEW_STEPS).plan
    run.run(until=lambda: run.service.run.machine.round == 2 and run.service.run.machine.answered)
    run.kill("coordinator")
    run.plan = bare.with_codec(after)
    run.boot_coordinator()
    assert_same(whole, run.run())
    assert not run.service.run.link.meter.rejected


def test_a_device_leaves_a_run_whose_lossy_codec_is_not_in_the_plan(tmp_path, monkeypatch):
    rounding = CodecSettings({"weights": CodecStage("int8", "broadcast")})
    monkeypatch.setattr(
        "protofleet.coordinator.participants.written_codec",
        lambda codec, kinds: written_codec(rounding, kinds),
    )
    run = simulated(tmp_path, "fedavg", None)
    run.run(until=lambda: run.agents["device-0"].finished)
    assert "a codec that rounds must be in the plan" in run.agents["device-0"].view.problem


def test_only_the_welcome_of_a_device_with_the_form_codec_names_a_codec(tmp_path, monkeypatch):
    reads_no_codec(monkeypatch, "device-2")
    told = {}
    for codec in (None, "off"):
        run = simulated(tmp_path / f"{codec}", "fedavg", codec)
        for name, agent in run.agents.items():
            watch(
                agent,
                lambda welcome, name=name, codec=codec: told.setdefault((codec, name), welcome.about.codec),
            )
        run.run(until=lambda run=run: run.service.run.machine.round == 2)
    assert {place for place, text in told.items() if text} == {(None, "device-0"), (None, "device-1")}
    assert len(told) == 6


def watch(agent, heard):
    """Call `heard` with each welcome that a device accepts."""
    taken = agent.tasks.welcomed

    def welcomed(welcome, epoch):
        heard(welcome)
        taken(welcome, epoch)

    agent.tasks.welcomed = welcomed
