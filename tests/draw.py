"""`python -m tests.draw SEED` draws texts of the code and paragraphs of docs/ for a reader who marks unclear ones.

The same seed and the same tree give the same texts. Do not choose the seed yourself: use a commit's hash.
"""

from __future__ import annotations

import ast
import io
import random
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.rooms import PACKAGES, ROOT

TEXTS, PARAGRAPHS = 100, 20
FOLDERS = (*PACKAGES, "tools", "benchmarks")
SHOWS = {
    "info",
    "warning",
    "error",
    "exception",
    "critical",
    "print",
}  # Calls that show their first argument.
DIRECTIVE = re.compile(r"#\s*(noqa|fmt:|type:|mypy:)")


def texts(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield the kind, the line and the text of each docstring, comment and message of a file."""
    source = path.read_text()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield "docstring", node.body[0].lineno, text
        elif isinstance(node, ast.Call | ast.Raise):
            yield from messages(node)
    yield from comments(source)


def messages(node: ast.Call | ast.Raise) -> Iterator[tuple[str, int, str]]:
    """Yield the text of an exception, of a line of the log or the screen, and of a help."""
    shown: list[ast.expr] = []
    if isinstance(node, ast.Raise):
        shown = node.exc.args[:2] if isinstance(node.exc, ast.Call) else []
    else:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        shown = node.args[:1] if name in SHOWS else []
        shown += [keyword.value for keyword in node.keywords if keyword.arg == "help"]
    for one in shown:
        if len((text := words_of(one)).split()) > 3:
            yield "message", one.lineno, text


def words_of(node: ast.expr) -> str:
    """Return the text of a string, with the expressions of an f-string in braces; "" for other expressions."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(values):
            return "".join(
                v.value if isinstance(v, ast.Constant) else "{" + ast.unparse(v.value) + "}" for v in values
            )
        case ast.BinOp(left, ast.Add(), right):
            return words_of(left) + words_of(right)
    return ""


def comments(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield each comment; a comment of several lines is one text."""
    lines: list[str] = []
    first, last, was_alone = 0, 0, False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or DIRECTIVE.match(token.string):
            continue
        text, line = token.string.lstrip("#! "), token.start[0]
        alone = not token.line[: token.start[1]].strip()
        if lines and line == last + 1 and alone and was_alone:
            lines.append(text)
        else:
            if lines:
                yield "comment", first, " ".join(lines)
            lines, first = [text], line
        last, was_alone = line, alone
    if lines:
        yield "comment", first, " ".join(lines)


def paragraphs(page: Path) -> Iterator[tuple[int, str]]:
    """Yield each paragraph and each list of a page with at least fifteen words, with its line."""
    text = re.sub(
        r"```.*?^```", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    line = 1
    for part in re.split(r"(\n\s*\n)", text):
        if not part.lstrip().startswith(("#", "|", "<!--", "!")) and len(part.split()) >= 15:
            yield line, part.strip()
        line += part.count("\n")


def code_of(path: Path, kind: str, line: int) -> str:
    """Return the line of code that a docstring or a comment is about, or "" for a module or a message.

    A reader always sees a comment with its line, and a docstring with the name of its function.
    """
    lines = path.read_text().splitlines()
    if kind == "comment":
        at = line - 1
        while at < len(lines) and lines[at].lstrip().startswith("#"):
            at += 1
        return re.sub(r"\s+# .*", "", lines[at].strip()) if at < len(lines) else ""
    above = [text.strip() for text in lines[: line - 1]] if kind == "docstring" else []
    starts = [at for at, text in enumerate(above) if re.match(r"(async )?def |class ", text)]
    header = " ".join(above[starts[-1] :]) if starts else ""
    if header.endswith(":") or "# fmt: skip" in header:
        return header.replace("  # fmt: skip", "")
    return above[-1] if above else ""  # A field, whose sentence stands below it.


def main(seed: str) -> None:
    chance = random.Random(seed)
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    found = [(path, *one) for path in files for one in texts(path)]
    written = [(page, *one) for page in sorted((ROOT / "docs").glob("*.md")) for one in paragraphs(page)]
    for number, (path, kind, line, text) in enumerate(chance.sample(found, TEXTS), 1):
        code = f"> {about}\n" if (about := code_of(path, kind, line)) else ""
        print(f"{number}. {kind} of {path.relative_to(ROOT)}:{line}\n{code}{text}\n")
    for number, (path, line, text) in enumerate(chance.sample(written, PARAGRAPHS), 1):
        print(f"P{number}. {path.relative_to(ROOT)}:{line}\n{text}\n")
    print(f"drawn of {len(found)} texts and {len(written)} paragraphs")


if __name__ == "__main__":
    main(sys.argv[1])
