"""Write the table of arrays in docs/protocol.md: python -m tools.pages.arrays.

The table shows the arrays that the coordinator requires for every method.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.methods.contract.base import Member, Payload
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.round_arrays import cheap_settings, tasks_of_rounds
from protofleet.methods.contract.wants import ROW_NORM, table_of
from protofleet.protocol.wire.messages import ArraySpec
from tools.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "protocol.md"
# C is the number of classes, D the width of the embedding, and N the number of examples. These values are chosen
# so that no other number in the tables is equal to one of them.
C, D, N = 7, 57, 35
SYMBOLS: Final = {C: "C", D: "D", N: "N", C - 1: "C - 1", (N + C) // 2: "(N + C) / 2", D // C: "D // C"}
HEAD: Final = "| method | phase | the broadcast holds | rows of the answer |\n|---|---|---|---|\n"


# The phase, the arrays that the server half sends, and the arrays that an update must have.
Question: TypeAlias = tuple[str, Payload, tuple[ArraySpec, ...]]


def questions(method: str) -> Iterator[Question]:
    """Yield the tasks of a server half in two rounds and in the last evaluation.

    Each update that the server half gets has the smallest arrays that are accepted.
    """
    plan = Plan(method, C, 2, size=32, network=Network("cnn_bn", feature_size=D))
    plan = replace(plan, hyper=cheap_settings(plan))
    server = plan.server_half()
    for asks in tasks_of_rounds(server, [Member("a", N, (N // C,) * C)]):
        for ask in asks:
            yield ask.phase, ask.payload, table_of(ask.wants, ask.payload, CoordinatorLimits().norm)
    yield "evaluate", server.payload(), ()


def table() -> str:
    return HEAD + "".join(line for method in names() for line in _lines(method))


def _lines(method: str) -> Iterator[str]:
    """Yield one line for each phase.

    The arrays that the server half sends may differ between rounds. The arrays of an update are always the same.
    """
    sent: dict[tuple[str, str], dict[str, None]] = {}
    for phase, payload, rows in questions(method):
        sent.setdefault((phase, _rows(rows)), {})[_kinds(payload)] = None
    for (phase, rows_text), kinds in sent.items():
        yield f"| `{method}` | `{phase}` | {'; or '.join(kinds)} | {rows_text} |\n"


def _kinds(payload: Payload) -> str:
    found = dict.fromkeys(name.partition(".")[0] + (".*" if "." in name else "") for name in sorted(payload))
    return ", ".join(f"`{kind}`" for kind in found) or "nothing"


def _rows(rows: Sequence[ArraySpec]) -> str:
    return "<br>".join(map(_row, rows)) or "none"


def _row(row: ArraySpec) -> str:
    form = "as sent" if row.shape is None else f"{row.dtype} [{', '.join(map(_symbol, row.shape))}]"
    parts = [form, f"most {_symbol(row.most)}" if row.most is not None else ""]
    parts += [
        f"{word} {_symbol(bound)}"
        for word, bound in (("low", row.low), ("high", row.high))
        if bound is not None
    ]
    return f"`{row.name}`: " + ", ".join([*filter(None, parts), *(f"`{_rule(rule)}`" for rule in row.rules)])


def _rule(rule: str) -> str:
    """Return a rule; the norm of a row is shown as a multiple of sqrt(D)."""
    if not rule.startswith(ROW_NORM):
        return rule
    return f"{ROW_NORM}{float(rule.removeprefix(ROW_NORM)) / math.sqrt(D):g} sqrt(D)"


def _symbol(value: float | str) -> str:
    return value if isinstance(value, str) else SYMBOLS.get(int(value), f"{value:,.0f}")


def generate(page: str) -> str:
    return replace_table(page, "tools.pages.arrays", table())


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))
