"""The forms that the bundles of a stage may have."""

from __future__ import annotations

from typing import Final

from protofleet.protocol.coding.forms import Form
from protofleet.protocol.settings.codec import BROADCAST, EXACT, TERNARY, CodecStage

OWN_FORMS: Final = {
    EXACT: frozenset[Form](),
    "float16": frozenset({Form.FLOAT16, Form.BFLOAT16}),
    "bfloat16": frozenset({Form.BFLOAT16}),
    "int8": frozenset({Form.INT8}),
    "int4": frozenset({Form.INT4}),
    "uint8": frozenset({Form.UINT8, Form.INT8}),
    "uint4": frozenset({Form.UINT4, Form.INT4}),
    "rice": frozenset({Form.RICE}),
    TERNARY: frozenset({Form.TERNARY}),
}
ALWAYS: Final = frozenset({Form.SAME, Form.EXACT, Form.INTS})
# Every stage that rounds may also use these forms, for statistics of batch norm, new arrays and small arrays.
WHERE_ROUNDED: Final = frozenset({Form.FLOAT16, Form.BFLOAT16, Form.INT8})
LOSSLESS: Final = CodecStage(against=BROADCAST)


def allowed_forms(stage: CodecStage) -> frozenset[Form]:
    """Return the forms that a bundle of this stage may have."""
    planes = frozenset({Form.PLANES}) if stage.pack else frozenset[Form]()
    return ALWAYS | planes | (OWN_FORMS[stage.form] | WHERE_ROUNDED if stage.rounds else frozenset())
