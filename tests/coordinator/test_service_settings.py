"""The settings of a coordinator that conducts submitted runs, and the experiments that are submitted to it."""

import re
from pathlib import Path

import pytest
import tomllib

from protofleet.coordinator.service_settings import (
    MOST_EXPERIMENT,
    OF_AN_EXPERIMENT,
    ServiceSettings,
    is_service,
)
from protofleet.protocol.settings.reader import SettingsError

PAGE = Path(__file__).parents[2] / "docs" / "run-queue.md"
EXPERIMENT = 'rounds = 2\nclasses = 3\n[method]\nname = "fedavg"\n'


def service():
    """Return the settings in the documents."""
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    table = tomllib.loads(text)
    assert is_service(table)
    return ServiceSettings.of(table)


def test_the_documented_experiment_can_be_submitted_and_the_page_names_all_keys_of_a_run():
    page = PAGE.read_text()
    (text,) = re.findall(r"^```toml submitted\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert service().of_run("fedavg", text).rounds == 20
    (row,) = (line for line in page.splitlines() if line.startswith("| `name`, `rounds`, `classes`"))
    assert set(re.findall(r"`(\w+)`", row.split("|")[1])) == OF_AN_EXPERIMENT - {"experiment"}


def test_a_submitted_run_has_the_settings_of_its_experiment_and_of_the_documented_service():
    run = service().of_run("red", EXPERIMENT)
    assert (run.name, run.rounds, run.federation, run.broker.host) == ("red", 2, "lab", "broker.lab")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slots = 3\n" + EXPERIMENT, "slots is not a setting of a submitted experiment"),
        ("folder = '/'\n" + EXPERIMENT, "folder is not a setting of a submitted experiment"),
        (EXPERIMENT + "[data]\nroot = '/'\n", "data is not a setting of a submitted experiment"),
        ("rounds = 2\nclasses = 3\n[method]\nfile = '/m.py'\n", "method.file is a path"),
        ("rounds = 0\nclasses = 3\n[method]\nname = 'fedavg'\n", "rounds is 0, it must be"),
        (EXPERIMENT + "lr2 = 1\n", "method.lr2 is not a setting of fedavg"),
        (
            EXPERIMENT + "[select]\nmost = 2\n[policy]\nquorum = 3\n",
            "select.most is 2, but policy.quorum is 3",
        ),
        (
            EXPERIMENT + "[budget]\nbytes = '50 kB'\n[policy]\nquorum = 2\n",
            "budget.bytes is 50.0 kB, but to join and one round transfer",
        ),
        (
            "roundz = 2\n" + EXPERIMENT,
            "roundz is not a setting of an experiment; did you mean rounds? there are",
        ),
        (EXPERIMENT + "[", "the experiment is not TOML"),
        (EXPERIMENT + "#" * MOST_EXPERIMENT, "the limit is 65,536"),
    ],
)
def test_an_invalid_experiment_is_refused_in_one_line(text, words):
    with pytest.raises(SettingsError, match=re.escape(words)) as caught:
        service().of_run("red", text)
    assert "\n" not in str(caught.value)


def test_a_file_without_a_run_name_must_not_have_keys_of_a_run():
    with pytest.raises(SettingsError, match="classes belongs to a run, and this file names no run"):
        ServiceSettings.of({"classes": 3})


def test_the_number_of_slots_is_from_1_to_8_and_by_default_2():
    assert service().queue.slots == 2 and ServiceSettings.of({"slots": 8}).queue.slots == 8
    for number in (0, 9):
        with pytest.raises(SettingsError, match=f"slots is {number}, it must be"):
            ServiceSettings.of({"slots": number})
