"""Read the sentence of each field of a settings class: the string literal on the line after the field.

Python does not keep these literals at run time, and `python -OO` removes docstrings too. So both are read
from the source. If the source is not installed, there are no sentences.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator


@functools.cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring of each field, including the fields of base classes.

    If a class declares a field of its base again without a docstring, the docstring of the base is used.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(base):
            found |= dict(_documented(base))
    return found


def sentences(cls: type) -> dict[str, str]:
    """Return the docstring of each field, joined into one line."""
    return {name: " ".join(text.split()) for name, text in field_docstrings(cls).items()}


@functools.cache
def summary(cls: type) -> str:
    """Return the first sentence of the class's docstring, on one line; "" without a docstring."""
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
