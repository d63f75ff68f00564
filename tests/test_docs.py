"""Tests that the examples in the documents work: settings decode, commands run, names exist."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.spool.epochs import epoch_file
from protofleet.coordinator.spool.lives import life_file
from protofleet.deploy.fleet.settings import Fleet
from protofleet.deploy.fleet.status import NOW, TITLES, status_object
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.federation.remote.settings import OperatorSettings
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.virtual.profiles import Profiles
from protofleet.protocol.settings.reader import decode, tomllib
from tests.support.forked_program import forked_program

ROOT = Path(__file__).parent.parent
KINDS = {
    "experiment": Experiment,
    "coordinator": CoordinatorSettings,
    "device": DeviceSettings,
    "fleet": Fleet,
    "data": DataSettings,
    "operator": OperatorSettings,
    "profiles": Profiles,
}
FENCE = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language):
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for i, (kind, tag, text) in enumerate(FENCE.findall(path.read_text())):
            if kind == language:
                yield pytest.param(tag, text, id=f"{path.name}-{i}")


@pytest.mark.parametrize(("tag", "text"), list(blocks("toml")))
def test_each_toml_block_in_the_documents_can_be_decoded(tag, text):
    table = tomllib.loads(text)
    if tag in KINDS:
        decode(KINDS[tag], table)
    elif "data" in table:
        decode(DataSettings, table["data"])


@pytest.mark.slow
@pytest.mark.parametrize(("tag", "text"), list(blocks("sh")))
def test_commands_in_the_documents_run(tag, text, tmp_path):
    if tag in ("long", "board"):  # Other tests run long commands such as `make demo`, and a board's commands.
        return
    for line in text.strip().splitlines():
        assert line.startswith("protofleet "), line
        done = forked_program(line.split()[1:], tmp_path / "log", tmp_path)
        assert done.wait(180.0) == 0, (tmp_path / "log").read_text()


@pytest.mark.parametrize("cls", [Experiment, CoordinatorSettings, DeviceSettings])
def test_every_setting_is_in_the_documents(cls):
    text = (ROOT / "docs" / "settings.md").read_text()
    missing = [f.name for f in fields(cls) if not re.search(rf"\b{f.name}\b", text)]
    assert missing in ([], ["broker_words"])


def linked_pages():
    named = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "tests/protocol/golden/README.md")
    return [*(ROOT / name for name in named), *sorted((ROOT / "docs").glob("*.md"))]


def sections(page):
    """Return the names by which links refer to the sections of a page."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", linked_pages(), ids=lambda page: page.name)
def test_each_link_in_the_documents_leads_to_an_existing_file_and_section(page):
    for target, section in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not section or section in sections(linked), f"{page.name} links to {target}#{section}"


def test_every_word_of_deploy_status_is_in_the_glossary():
    rows = re.findall(r"^\| ([^|]+?) (?:\(now\) )?\|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert {"host", *rows} >= {*TITLES, *NOW}


def test_the_keys_of_deploy_status_for_programs_are_documented():
    page = (ROOT / "docs/day-2.md").read_text()
    keys = {"healthy", "problem", *status_object(("-",) * len(TITLES))}
    assert not {key for key in keys if f"`{key}`" not in page}


@pytest.mark.parametrize("file", [epoch_file, life_file])
def test_the_page_names_the_files_that_a_coordinator_keeps_outside_its_runs(file):
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert f"`{file(Path('<runs>'), '<federation>')}`" in page


def test_every_page_is_listed_once_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    kinds = re.split(r"^## ", index, flags=re.MULTILINE)
    assert [kind.splitlines()[0] for kind in kinds[1:5]] == [
        "Tutorials", "How-to guides", "Reference", "Explanation",
    ]  # fmt: skip
    rows = [
        row
        for kind in kinds[1:5]
        for row in re.findall(r"^\| \[([\w-]+\.md)\]\((\S+)\) \| .+\. \|$", kind, re.MULTILINE)
    ]
    assert all(name == target for name, target in rows)
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert sorted(name for name, _ in rows) == sorted(pages)
