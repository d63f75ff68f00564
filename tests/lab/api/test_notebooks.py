"""The notebooks of docs/examples, run cell by cell in a Jupyter kernel."""

import json
from pathlib import Path

import pytest

from tests.rooms import ROOT

EXAMPLES = ROOT / "docs" / "examples"
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_stored_notebook_has_no_outputs(name):
    text = (EXAMPLES / f"{name}.ipynb").read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert len(text) < 20_000


def ran(name, folder, monkeypatch):
    """Run a notebook and return its code cells with their outputs.

    A cell that raises fails the test, with the traceback of the cell.
    """
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(folder / variable.lower()))
    book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(book, timeout=200, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell for cell in book.cells if cell.cell_type == "code"]


def shown(cells, kind):
    """Return all outputs of this MIME type, in order."""
    outputs = [output for cell in cells for output in cell.outputs]
    return [output.data[kind] for output in outputs if kind in output.get("data", {})]


def no_errors_or_warnings(cells):
    return [o.text for cell in cells for o in cell.outputs if o.get("name") == "stderr"] == []


@pytest.mark.slow
def test_the_researchers_notebook_compares_three_methods_and_its_own_method(tmp_path, monkeypatch):
    cells = ran("researcher", tmp_path, monkeypatch)
    assert no_errors_or_warnings(cells)
    assert len(shown(cells, "image/png")) == 2
    tables = "".join(shown(cells, "text/html"))
    assert all(name in tables for name in ("fedavg", "fedlsa", "fedproto", "<caption>"))
    rows = cells[-1].outputs[0].text.splitlines()
    assert [row.split()[0] for row in rows] == ["fedavg", "fedlsa", "fedproto", "own"]
    assert r"\toprule" in (tmp_path / "table.tex").read_text()
    lines = [
        text for text in shown(cells, "text/plain") if text.startswith("the run is over, mean accuracy ")
    ]
    assert len(lines) == 4, "a line for each run, which changes"


@pytest.mark.slow
def test_the_model_users_notebook_loads_a_model_and_shows_predictions_and_confusions(tmp_path, monkeypatch):
    cells = ran("model_user", tmp_path, monkeypatch)
    assert no_errors_or_warnings(cells)
    assert len(shown(cells, "image/png")) == 2
    plain = shown(cells, "text/plain")
    assert any("('circle', 'square', 'triangle')" in text for text in plain)
    assert any(text.startswith("tensor([[") for text in plain)
    assert len(list(Path(tmp_path / "new").glob("*.png"))) == 90
