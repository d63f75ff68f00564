"""Carry what a device needs to compute a sum itself: signed masked vectors, and the secrets that unmask the sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.secagg.control_arrays import (
    ByteArrays,
    as_array,
    bytes_in,
    in_order,
    rows_in,
)
from protofleet.protocol.secagg.masks import KEY
from protofleet.protocol.secagg.packing import packed_bytes
from protofleet.protocol.secagg.roster import Roster
from protofleet.protocol.secagg.signing import SIGNATURE
from protofleet.protocol.secagg.total import SumSecrets


@dataclass(frozen=True)
class SumEvidence:
    """The signed masked vectors of a sum, and the secrets that unmask the sum."""

    vectors: Mapping[str, bytes]
    signatures: Mapping[str, bytes]
    secrets: SumSecrets


def evidence_arrays(roster: Roster, evidence: SumEvidence) -> dict[str, NDArray[np.uint8]]:
    """Return the arrays `vectors`, `signatures`, `seeds` and `lost`, with rows in the order of the roster."""
    stage = roster.terms.stage
    tables = {
        "vectors": evidence.vectors,
        "signatures": evidence.signatures,
        "seeds": evidence.secrets.seeds,
        "lost": evidence.secrets.lost,
    }
    return {
        f"control.{stage}.{part}": as_array(b"".join(rows[name] for name in in_order(roster, rows)))
        for part, rows in tables.items()
    }


def read_evidence(
    roster: Roster, first: Collection[str], survivors: Collection[str], arrays: ByteArrays
) -> SumEvidence:
    """Return the evidence in these arrays, or raise SecaggError; signatures and secrets are not checked."""
    terms = roster.terms
    inside, outside = in_order(roster, survivors), in_order(roster, set(first) - set(survivors))
    size = packed_bytes(terms.length, terms.field.bits)

    def rows(part: str, names: Collection[str], width: int) -> dict[str, bytes]:
        data = bytes_in(arrays, f"control.{terms.stage}.{part}")
        return dict(zip(names, rows_in(data, len(names), width, part), strict=True))

    secrets = SumSecrets(rows("seeds", inside, KEY), rows("lost", outside, KEY))
    return SumEvidence(rows("vectors", inside, size), rows("signatures", inside, SIGNATURE), secrets)
