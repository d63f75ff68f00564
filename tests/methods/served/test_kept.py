"""Tests that a device's own model, saved in a file, predicts in each of its ways as before."""

import pytest
import torch

from protofleet.methods.served.card import CardError
from protofleet.methods.served.kept import KeptOrigin, pieces_of_kept, read_kept
from protofleet.methods.served.rebuild import rebuild
from protofleet.methods.served.scaling import input_of
from protofleet.methods.served.served import served, ways_of
from tests.methods.served.trained import NAMES, SIDE, device_0, plan_of


def kept(path, method):
    plan, half = plan_of(method), device_0(method)
    origin = KeptOrigin(plan, "device-0", plan.network, ("cat", "dog", "owl"))
    path.write_bytes(b"".join(pieces_of_kept(half, origin, 3, 0.5, {"own": 0.25})))
    return path


@pytest.mark.parametrize("method", sorted(NAMES))
def test_a_kept_model_predicts_the_same_scores_in_each_way_to_predict(tmp_path, method):
    found, half = read_kept(kept(tmp_path / "last.safetensors", method)), device_0(method)
    assert sorted(found.ways) == sorted(ways_of(half))
    assert (found.card.round, found.card.device, found.card.validation) == (3, "device-0", 0.5)
    assert found.card.classes == ("cat", "dog", "owl")
    of = input_of(plan_of(method))
    raw = of.drawn(4)
    for way in found.ways:
        card, tensors = found.model(way)
        assert card.way == way
        with torch.no_grad():
            assert torch.equal(rebuild(card, tensors)(raw), served(half, of, way)(raw))


def test_a_kept_file_has_the_common_tensors_of_all_ways_only_once(tmp_path):
    path, card = kept(tmp_path / "last.safetensors", "fedlsa"), read_kept(tmp_path / "last.safetensors").card
    anchors = 4 * card.input.shape[0] * SIDE
    assert path.stat().st_size < card.bytes + anchors + 12_000  # 12,000 bytes for the table of the file.


def test_a_damaged_file_is_refused_with_the_reason(tmp_path):
    path = kept(tmp_path / "last.safetensors", "fedavg")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CardError, match="is damaged: its tensors are not those that were written"):
        read_kept(path).model()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CardError, match="is damaged: the entry of the tensor "):
        read_kept(path).model()
    path.write_bytes(b"")
    with pytest.raises(CardError, match="cannot be read"):
        read_kept(path)
    with pytest.raises(CardError, match="cannot be read"):
        read_kept(tmp_path / "none")


def test_an_unknown_way_to_predict_is_refused_with_the_known_ways(tmp_path):
    with pytest.raises(CardError, match="the prediction mode 'x' does not exist; there are predict, anchor"):
        read_kept(kept(tmp_path / "last.safetensors", "fedlsa")).model("x")
