"""Read the sentence of each field of a settings class: the string literal on the line after the field.

Python does not keep these literals, and `python -OO` drops docstrings too, so both are read from the source. A
program without its source has no sentences.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator


@functools.cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring of each field as it is written, also of fields that a base class declares.

    A field that a class declares again, for another default, keeps the docstring of the base class unless it
    has its own.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(base):
            found |= dict(_documented(base))
    return found


def sentences(cls: type) -> dict[str, str]:
    """Return the sentence of each field, on one line."""
    return {name: " ".join(text.split()) for name, text in field_docstrings(cls).items()}


@functools.cache
def summary(cls: type) -> str:
    """Return the first sentence of the class's docstring, on one line; "" if it has none."""
    tree = _tree(cls)
    text = ast.get_docstring(tree) if tree else None
    paragraph = " ".join((text or "").partition("\n\n")[0].split())
    first, stop, _ = paragraph.partition(". ")
    return first + stop.strip()


def _documented(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of each field that the class itself declares."""
    tree = _tree(cls)
    for line, after in zip(tree.body, tree.body[1:], strict=False) if tree else ():
        if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)):
            continue
        if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
            continue
        if isinstance(after.value.value, str):
            yield line.target.id, inspect.cleandoc(after.value.value)


def _tree(cls: type) -> ast.ClassDef | None:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return tree if isinstance(tree, ast.ClassDef) else None
