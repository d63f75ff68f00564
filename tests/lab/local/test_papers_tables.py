"""The experiment files cover each cell of the papers' tables, with the settings and figures that papers state."""

import re
from pathlib import Path

import pytest

from protofleet.lab.local.experiment import read_with_bases
from protofleet.methods.contract.catalog import load
from protofleet.protocol.settings.reader import tomllib

FOLDER = Path(__file__).parents[3] / "experiments"
TABLES = tomllib.loads((Path(__file__).parent / "papers.toml").read_text())
CELLS = {f"{stem}-{method}": figure for stem, row in TABLES.items() for method, figure in row.items()}
# Rows of the tables in which one method lacks a part; the complete method has a row above.
ABLATIONS = re.compile(r"fedlsa/table[45]-|fedplcc/table5-|fedsa/table4-")

# Settings that the papers state in words: (files, path of the setting, value).
STATED = [
    ("fedlsa/table*", "rounds", 100),
    ("fedlsa/table*", "method.epochs", 5),
    ("fedlsa/table*", "method.batch", 64),
    ("fedlsa/table2-digits-*", "devices.clients", {"mnist": 1, "usps": 4, "svhn": 2, "syn": 3}),
    ("fedlsa/table[23]-*-fedlsa", "method.server_epochs", 500),
    ("fedplcc/table[245]*", "rounds", 50),
    ("fedplcc/table3*", "rounds", 100),
    ("fedplcc/table*", "method.epochs", 10),
    ("fedplcc/table[235]*", "data.samples", 300),
    ("fedplcc/table4*", "data.samples", 400),
    ("fedplcc/table2-*-fedplcc", "method.lambda1", 100.0),
    ("fedplcc/table3-*-fedplcc", "method.lambda1", 20.0),
    ("fedplcc/table4-*-fedplcc", "method.lambda1", 1.0),
    ("fedplcc/table[234]-*-fedplcc", "method.tau", 0.07),
    ("fedsa/table*", "method.batch", 10),
    ("fedsa/table*", "method.lr", 0.01),
    ("fedsa/table[124]*", "method.epochs", 1),
    ("fedsa/table3-e5-*", "rounds", 500),
    ("fedsa/table3-e10-*", "rounds", 200),
    ("fedsa/table1-device-*", "devices.count", 100),
    ("fedsa/table1-device-*", "policy.cohort", 10),
    ("fedsa/table1-silo-*", "devices.count", 20),
    ("fedsa/table*", "data.beta", 0.1),
    ("fedsa/table*", "data.own_test", 0.25),
    ("fedhp/table1-[cm]*", "rounds", 150),
    ("fedhp/table1-svhn-*", "rounds", 300),
    ("fedhp/table1-*", "devices.count", 100),
    ("fedhp/table1-*", "policy.cohort", 10),
    ("fedhp/table1-*", "method.epochs", 5),
    ("fedhp/table1-*", "method.final_fit", True),
    ("fedhp/table1-*", "data.own_test", 0.2),
    ("fedpall/table1-*", "data.own_test", 0.2),
    ("fedpall/table1-*", "network.name", "resnet50"),
    ("fedpall/table1-digits-*", "data.fraction", 0.1),
    ("fedpall/table1-digits-fedpall", "method.mu", 0.7),
    ("fedpall/table1-digits-fedpall", "method.delta", 0.3),
    ("fedpall/table1-office-fedpall", "method.delta", 0.1),
]
SWEEPS = {
    "fedlsa-digits-fig5": {"method.alpha": (0.001, 1.0), "method.lam": (0.001, 1.0)},
    "fedlsa-office-fig5": {"method.alpha": (0.001, 1.0), "method.lam": (0.001, 1.0)},
    "fedlsa-digits-fig6": {"method.tau": (0.05, 1.0)},
    "fedlsa-office-fig6": {"method.tau": (0.05, 1.0)},
    "fedpall-office-fig5": {"method.mu": (0.1, 1.0), "method.delta": (0.1, 1.0)},
    "fedsa-table5-cc": {"method.lambda3": (0.1, 10.0)},
    "fedsa-table5-mcl": {"method.lambda2": (0.1, 10.0)},
}


def comment_of(path):
    return " ".join(line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#"))


@pytest.mark.parametrize("cell", sorted(CELLS))
def test_each_cell_of_a_table_has_a_file_with_its_method_and_figure(cell):
    path = FOLDER / f"{cell}.toml"
    assert read_with_bases(path)["method"]["name"] == cell.rsplit("-", 1)[1]
    said = re.search(r"(\d+\.\d+) % (on average )?in the paper", comment_of(path))
    assert said and float(said[1]) == pytest.approx(CELLS[cell], abs=0.0051), said and said[0]


def test_every_table_file_belongs_to_a_cell_of_a_table():
    files = {str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/table*.toml")}
    assert {name for name in files - CELLS.keys() if not ABLATIONS.match(name)} == set()


@pytest.mark.parametrize(("pattern", "key", "value"), STATED, ids=lambda part: str(part)[:40])
def test_each_setting_that_a_paper_states_is_in_its_files(pattern, key, value):
    files = sorted(FOLDER.glob(f"{pattern}.toml"))
    assert files
    for path in files:
        assert value_at(read_with_bases(path), key) == value, path


def value_at(table, key):
    """Return the value in the file or its bases, or else the default of the method."""
    first, _, name = key.partition(".")
    if first == "method" and name not in table["method"]:
        return getattr(load(table["method"]["name"]).Hyper(), name)
    return table[first][name] if name else table[first]


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_the_sweep_of_a_figure_covers_the_range_that_the_paper_shows(name):
    grid = tomllib.loads((FOLDER / "sweeps" / f"{name}.toml").read_text())["grid"]
    assert {key: (values[0], values[-1]) for key, values in grid.items()} == SWEEPS[name]
