"""Tests of the named codecs: the stages of each name, and the use of a name in an experiment."""

import json

import pytest

from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.codec import EXACT, ROUNDED_KINDS, CodecSettings, CodecStage
from protofleet.protocol.settings.named_codecs import NAMED, read_codec, stages_of, written_codec
from protofleet.protocol.settings.reader import SettingsError, decode, override, parse_toml
from tests.support.small_experiment import TWO


def test_all_named_codecs_round_except_lossless_and_off():
    for name in NAMED:
        codec = stages_of(name, ROUNDED_KINDS)
        rounds = any(stage.rounds for stage in (*codec.up.values(), *codec.down.values()))
        assert rounds is (name != "lossless")
    assert stages_of("off", ROUNDED_KINDS) is None


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("method", [name for name in names() if load(name).arrays])
def test_each_codec_fits_the_kinds_of_each_method(name, method):
    kinds = Plan(method, 3, 2).variant.kinds.declared
    codec = Plan(method, 3, 2).with_codec(name).coding
    assert set(codec.up) == set(codec.down) == set(kinds)
    for kind in set(kinds) - set(ROUNDED_KINDS):
        assert codec.up[kind].form == codec.down[kind].form == EXACT


@pytest.mark.parametrize("name", [None, "lossless"])
def test_a_lossless_codec_changes_no_byte_of_the_plan(name):
    plain = Plan("fedavg", 3, 2)
    plan = plain.with_codec(name)
    assert (plan.encode(), plan.digest) == (plain.encode(), plain.digest)
    assert plan.codec is None and plan.coding.up["weights"].pack is (name == "lossless")
    written = written_codec(plan.coding, ("weights",))
    assert written == json.dumps(name or "exact").encode()
    assert read_codec(written, ("weights",)) == plan.coding
    own = CodecSettings({"weights": CodecStage(pack=True)})
    assert read_codec(written_codec(own, ("weights",)), ("weights",)) == own


def test_a_codec_outside_the_plan_must_be_lossless():
    with pytest.raises(SettingsError, match="a codec that rounds must be in the plan"):
        Plan("fedavg", 3, 2).with_lossless(stages_of("small", ("weights",)))
    with pytest.raises(SettingsError, match="the plan has a codec, and another codec"):
        Plan("fedavg", 3, 2).with_codec("small").with_lossless(stages_of(None, ("weights",)))
    with pytest.raises(SettingsError, match="the codec is not JSON"):
        read_codec(b"{", ())
    with pytest.raises(SettingsError, match="the codec 'tiny' is not known; update the software"):
        read_codec(b'"tiny"', ())


def test_a_plan_contains_the_stages_of_a_codec_and_not_its_name():
    plan = Plan("fedavg", 3, 2).with_codec("small")
    assert plan.codec.up["weights"].keep == 10 and plan.codec.up["weights"].feedback
    assert plan.codec.down["weights"].keep == 4 and not plan.codec.down["weights"].feedback
    assert b"small" not in plan.encode()
    assert Plan("fedavg", 3, 2).with_codec("off").encode() == Plan("fedavg", 3, 2).encode()


def test_an_experiment_accepts_the_name_of_a_codec_or_its_tables():
    table = parse_toml(TWO.encode(), "two")
    assert decode(Experiment, {**table, "codec": "smallest"}).plan.codec.up["weights"].keep == 16
    own = {"down": {"weights": {"form": "int8", "against": "broadcast"}}}
    assert decode(Experiment, {**table, "codec": own}).plan.codec == CodecSettings(
        {}, {"weights": stages("int8")}
    )
    with pytest.raises(SettingsError, match='codec is "tiny", but must be .*"small".* or a table'):
        decode(Experiment, {**table, "codec": "tiny"})
    for wrong, shown in ((5, "5"), ([1], r"\[1\]")):
        with pytest.raises(SettingsError, match=f'^codec is {shown}, but must be .*"small".* or a table$'):
            decode(Experiment, {**table, "codec": wrong})


def test_the_name_of_a_codec_together_with_stages_is_refused_with_a_fix():
    words = 'codec is not a table, but "small"; a single value and the key codec.up.weights.form cannot be mixed: '
    with pytest.raises(SettingsError, match=words + 'leave out codec = "small", or leave out this --set'):
        override({}, ["codec=small", "codec.up.weights.form=int8"])
    with pytest.raises(SettingsError, match='leave out codec.up = "small", or'):
        override({}, ["codec.up=small", "codec.up.weights.form=int8"])


def test_an_assignment_that_would_undo_an_earlier_assignment_is_refused():
    words = r"--set 'codec=small' would undo --set codec\.up\.weights\.form=\.\.\.; leave out one of the two"
    with pytest.raises(SettingsError, match=words):
        override({}, ["codec.up.weights.form=int8", "codec=small"])
    in_file = {"codec": {"up": {"weights": {"form": "int8"}}}}
    assert override(in_file, ["codec=small"]) == {"codec": "small"}, "a file may be overridden"
    assert override({}, ["seed=1", "seed=2"]) == {"seed": 2}, "the last of two equal keys counts"


def stages(form):
    return decode(CodecSettings, {"down": {"weights": {"form": form, "against": "broadcast"}}}).down[
        "weights"
    ]


@pytest.mark.parametrize(
    "stage", [{"form": "int8", "against": "broadcast"}, {"form": "int8"}, {"form": "ternary"}, {}]
)
def test_feedback_of_a_broadcast_is_refused_with_the_reason(stage):
    stage = {**stage, "feedback": True}
    with pytest.raises(SettingsError, match=r"codec\.down\.weights\.feedback is true; leave it out"):
        decode(CodecSettings, {"down": {"weights": stage}})


def test_a_codec_without_stages_is_refused():
    with pytest.raises(SettingsError, match="codec has no stage"):
        CodecSettings()


def test_the_error_for_a_keep_out_of_bounds_names_the_forms_without_keep():
    words = (
        r"keep is 1, it must be 0 \(the default, for forms other than ternary\), or at least 2 and at most"
    )
    with pytest.raises(SettingsError, match=words):
        decode(CodecSettings, {"up": {"weights": {"keep": 1}}})
