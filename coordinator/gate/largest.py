"""The size in bytes of the largest update that the open task allows, with or without a codec."""

from __future__ import annotations

from collections.abc import Mapping

from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.round_arrays import wanted_array
from protofleet.methods.contract.wants import most_bytes
from protofleet.protocol.coding.sizes import most_bytes_of_kind
from protofleet.protocol.coding.update import name_of_bundle
from protofleet.protocol.settings.codec import CodecStage
from protofleet.protocol.wire.kinds import kind_in


def largest_update(ask: Ask, stages: Mapping[str, CodecStage]) -> int:
    """Return the largest size in bytes; an update that loses nothing may also be sent without a codec."""
    coded = _largest_coded(ask, stages)
    return coded if any(stage.rounds for stage in stages.values()) else max(coded, most_bytes(ask.wants))


def _largest_coded(ask: Ask, stages: Mapping[str, CodecStage]) -> int:
    plain = {name: spec for name, spec in ask.wants.items() if kind_in(name) not in stages}
    total = most_bytes(plain)
    for kind, stage in stages.items():
        wanted = [wanted_array(name, spec, ask) for name, spec in ask.wants.items() if kind_in(name) == kind]
        if wanted:
            total += len(name_of_bundle(kind)) + 64 + most_bytes_of_kind(wanted, stage)
    return total
