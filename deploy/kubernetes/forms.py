"""Define the forms of the texts that Kubernetes accepts: names, images, quantities."""

from __future__ import annotations

import re
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias


@dataclass(frozen=True, slots=True)
class TextForm:
    """The form that a text must have. Helm checks the same pattern, so it has no look-ahead."""

    pattern: str
    words: str  # The words after "it must be" in an error message.

    def problem_with(self, text: str) -> str:
        return "" if re.fullmatch(self.pattern, text) else f"it must be {self.words}"


# A StatefulSet labels its pods with its own name and a hash, which makes at most 63 characters with 52 of the name.
# The longest name of the chart is <name>-coordinator.
MOST_NAME: Final = 40
LABEL: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
SUBDOMAIN: Final = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"

NAME_FORM: Final = TextForm(
    f"[a-z]([a-z0-9-]{{0,{MOST_NAME - 2}}}[a-z0-9])?",
    f"a DNS label of 1 to {MOST_NAME} of the characters a-z 0-9 -, which begins with a letter and ends with a letter "
    "or a digit",
)
Namespace: TypeAlias = Annotated[
    str,
    TextForm(
        LABEL, "a DNS label of 1 to 63 of the characters a-z 0-9 -, which begins and ends with one of a-z 0-9"
    ),
]
OptionalName: TypeAlias = Annotated[
    str,
    TextForm(
        f"({SUBDOMAIN})?", "the name of an object of Kubernetes, of the characters a-z 0-9 - ., or empty"
    ),
]
OptionalLabel: TypeAlias = Annotated[
    str, TextForm(f"({LABEL})?", "at most 63 of the characters a-z 0-9 -, or empty")
]
Image: TypeAlias = Annotated[
    str,
    TextForm(
        r"[a-z0-9]+([._:/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?",
        "the name of an image, such as registry.example/protofleet/demo:1 or name@sha256:...",
    ),
]
MemorySize: TypeAlias = Annotated[
    str,
    TextForm(
        "[1-9][0-9]{0,8}(Ki|Mi|Gi|Ti|k|M|G|T)", "a whole number with a unit, such as 512Mi, 10Gi or 500M"
    ),
]
Cpu: TypeAlias = Annotated[
    str,
    TextForm(
        r"[1-9][0-9]{0,3}(\.[0-9]{1,3})?|0\.[0-9]{0,2}[1-9]|[1-9][0-9]{0,5}m",
        "a number of cores above 0, such as 2, 0.5 or 500m",
    ),
]


def form_of(hint: Any) -> TextForm | None:
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, TextForm)), None)


def demand_forms(values: object) -> None:
    """Raise ValueError for the first text of a dataclass that does not have its form."""
    for name, hint in typing.get_type_hints(type(values), include_extras=True).items():
        form, value = form_of(hint), getattr(values, name)
        if form is not None and (problem := form.problem_with(value)):
            raise ValueError(f"{name} is {value!r}, {problem}")
