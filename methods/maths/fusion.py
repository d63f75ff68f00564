"""Means of rows in which a row counts more if it is similar to the other rows (FedDAP)."""

from __future__ import annotations

from torch import Tensor

from protofleet.methods.maths.geometry import unit


def similarity_mean(rows: Tensor, temperature: float) -> Tensor:
    """Return sum_i a_i P_i with a = softmax_i( sum_j cos(P_i, P_j) / temperature ), for rows P [K, D] -> [D].

    A single row is returned unchanged.
    """
    if len(rows) == 1:
        return rows[0]
    wide = rows.double()
    near = unit(wide) @ unit(wide).T  # [K, K]
    shares = (near.sum(dim=1) / temperature).softmax(dim=0)
    return (shares @ wide).to(rows.dtype)
