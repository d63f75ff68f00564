"""The page of commands has every command and every argument, as `--help` lists them."""

import contextlib
import io
import re

import pytest

from protofleet.cli.parser import parser
from tools.site.commands import as_prose, commands_page


def help_of(*words):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        parser().parse_args([*words, "--help"])
    return said.getvalue()


def every_command(*words):
    """Return all commands that `--help` lists, and the commands below these commands."""
    listed = re.search(r"^  (?:COMMAND|STEP)\n((?:    .*\n)+)", help_of(*words), re.MULTILINE)
    found = [words]
    for name in re.findall(r"^    (\S+)", listed[1], re.MULTILINE) if listed else ():
        found += every_command(*words, name)
    return found


def sections():
    pieces = re.split(r"^## `protofleet ?(.*)`\n", commands_page(parser()), flags=re.MULTILINE)
    return {tuple(name.split()): text for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def test_every_command_has_a_section():
    assert len(every_command()) > 40
    assert list(sections()) == every_command()


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_a_section_has_exactly_the_options_of_its_command(words):
    section = sections()[words]
    options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", help_of(*words), re.MULTILINE)) - {"--help"}
    cells = re.findall(r"^\| (`.+`) \|.*\|$", section, re.MULTILINE)
    assert options == set(re.findall(r"--[a-z-]+", "".join(cells)))
    said, usage = section.strip().split("\n\n```text\n")
    assert said.endswith(".") and usage.startswith(f"protofleet {' '.join(words)}".strip())


def test_the_usage_does_not_depend_on_the_terminal(monkeypatch):
    before = commands_page(parser())
    monkeypatch.setenv("COLUMNS", "40")
    assert commands_page(parser()) == before


def test_only_code_keeps_its_markup_in_the_text_of_a_help():
    assert (
        as_prose("<name>-s<seed>, a|b, _x_ and\n  `a|b_c`") == r"\<name\>-s\<seed\>, a\|b, \_x\_ and `a\|b_c`"
    )
