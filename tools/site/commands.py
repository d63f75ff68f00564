"""Write a page with every command and its arguments, from the parser of the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import Final

INTRO: Final = """\
# Commands and options

This page is written from the parser of the command. An option must be written in full. `--help` after any command
prints the same.
"""
CODE: Final = re.compile(r"(`[^`]+`)")
MARKS: Final = re.compile(r"([\\<>*_|\[\]{}$#])")
# The titles that argparse gives to its own groups of arguments.
COMMON_TITLES: Final = ("positional arguments", "options")


def commands_page(top: argparse.ArgumentParser) -> str:
    return INTRO + "".join(command_section(command, about) for command, about in walk(top))


def walk(command: argparse.ArgumentParser, about: str = "") -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield a command and all its sub-commands, each with its description in the list of commands.

    Commands without such a description are for other programs of this package, so `--help` does not list them.
    """
    yield command, about or command.description or ""
    for action in command._actions:  # argparse has no public list of the actions of a parser.
        if isinstance(action, argparse._SubParsersAction):
            said = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, inner in action.choices.items():
                if name in said:
                    yield from walk(inner, said[name])


def command_section(command: argparse.ArgumentParser, about: str) -> str:
    groups = command._action_groups
    common = [action for group in groups if group.title in COMMON_TITLES for action in group._group_actions]
    tables = table("", common, command.prog)
    for group in groups:
        if group.title and group.title not in COMMON_TITLES:
            tables += table(f"{group.title.capitalize()}:", group._group_actions, command.prog)
    ending = f"\n{as_sentence(command.epilog)}\n" if command.epilog else ""
    return f"\n## `{command.prog}`\n\n{as_sentence(about)}\n\n```text\n{usage(command)}```\n{tables}{ending}"


def usage(command: argparse.ArgumentParser) -> str:
    """Return the usage in lines of at most 80 letters. The width of the terminal does not matter."""
    formatter = argparse.HelpFormatter(command.prog, width=80)
    formatter.add_usage(command.usage, command._actions, command._mutually_exclusive_groups, prefix="")
    return formatter.format_help()


def table(title: str, actions: Sequence[argparse.Action], prog: str) -> str:
    rows = "".join(
        f"| {spelling(action)} | {as_prose(meaning(action, prog))} |\n"
        for action in actions
        if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
        and action.help != argparse.SUPPRESS  # the argument is for other programs of this package
    )
    return f"\n{as_prose(title)}\n\n| argument | meaning |\n|---|---|\n{rows}" if rows else ""


def spelling(action: argparse.Action) -> str:
    """Return all spellings of an argument as code, each with the name of its value."""
    value = " ".join(part for part in (value_name(action), repetition(action)) if part)
    names = [f"{option} {value}".strip() for option in action.option_strings] or [value]
    return ", ".join(f"`{name}`" for name in names).replace("|", "\\|")


def value_name(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper().replace("_", "-")
    return f"[{name}]" if action.nargs in ("?", "*") else name


def repetition(action: argparse.Action) -> str:
    return "..." if action.nargs in ("+", "*") else ""


def meaning(action: argparse.Action, prog: str) -> str:
    said = (action.help or "") % {**vars(action), "prog": prog}
    choices = ", ".join(f"`{choice}`" for choice in action.choices or ())
    return "; ".join(part for part in (said, f"one of {choices}" if choices else "") if part)


def as_sentence(text: str) -> str:
    return as_prose(f"{text[:1].upper()}{text[1:]}".removesuffix(".") + ".")


def as_prose(text: str) -> str:
    """Escape a text for Markdown, so that it can also stand in a cell of a table.

    Only code in backticks is still read as Markdown.
    """
    parts = CODE.split(" ".join(text.split()))
    return "".join(
        part.replace("|", "\\|") if CODE.match(part) else MARKS.sub(r"\\\1", part) for part in parts
    )
