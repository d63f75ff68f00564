import json
import re

import pytest

from protofleet.cli.main import main
from protofleet.lab.report.leakage_file import FILE, LeakageFile, LeakageRow, read_leakage, write_leakage
from protofleet.lab.report.leakage_page import leakage_text, write_leakage_page
from protofleet.runtime.command.errors import RunError
from tests.lab.report.test_compare import finished

GOOD = LeakageRow(
    "membership by the loss", "weights", "AUC", "A1", "board-1", 0.81, 0.75, 0.87, 0.5, 0.501, 0.47, 0.53,
    "never sent against never sent", gates=True,
)  # fmt: skip
STRUCK = LeakageRow(
    "membership by luck", "weights", "AUC", "A1", "board-2", 0.99, 0.98, 1.0, 0.5, 0.7, 0.6, 0.8,
    "never sent against never sent", sound=False,
)  # fmt: skip
MISSING = LeakageRow(
    "inversion of rows", "features", "", "A1", "board-1", unmeasured="it needs the attacker A3"
)


def measured(*worst, source="repeated", missing=(MISSING,)):
    return LeakageFile("fedavg", source, "A1", (1, 3), worst, worst[:1], worst, missing)


def test_the_page_names_the_attacker_of_each_figure_and_has_no_empty_cell(tmp_path):
    page = write_leakage_page(measured(GOOD, STRUCK), "demo", tmp_path / "page.html").read_text()
    assert "AUC 0.81 [0.75, 0.87] on board-1, the worst device, for attacker A1" in page
    assert "it needs the attacker A3" in page
    assert not re.search(r"<td[^>]*></td>", page)


def test_a_row_that_is_not_sound_is_struck_out_and_is_not_the_headline(tmp_path):
    found = measured(GOOD, STRUCK)
    assert found.headline == GOOD
    page = write_leakage_page(found, "demo", tmp_path / "page.html").read_text()
    assert "<s>membership by luck</s>" in page and "<s>membership by the loss</s>" not in page
    assert "struck out: the control is not at chance" in leakage_text(found)


def test_the_page_of_kept_answers_states_that_there_is_no_ground_truth(tmp_path):
    found = measured(source="kept", missing=(MISSING,))
    page = write_leakage_page(found, "demo", tmp_path / "page.html").read_text()
    assert "no ground truth: not measured" in page


def test_the_leakage_file_is_read_as_it_was_written(tmp_path):
    assert read_leakage(tmp_path) is None
    write_leakage(tmp_path, measured(GOOD, STRUCK))
    assert read_leakage(tmp_path) == measured(GOOD, STRUCK)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "worst": 3}'])
def test_a_leakage_file_that_cannot_be_read_is_refused_with_a_fix(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RunError, match="run (protofleet )?leakage again"):
        read_leakage(tmp_path)


def test_compare_shows_leakage_with_the_bytes_of_each_run(tmp_path, capsys):
    one, other = (finished(tmp_path / name, name, [0.1, 0.5]) for name in ("open", "closed"))
    assert main(["compare", str(one), str(other)]) == 0
    assert "What the answers give away" not in capsys.readouterr().out
    write_leakage(one, measured(GOOD, STRUCK))
    csv = tmp_path / "runs.csv"
    assert main(["compare", str(one), str(other), "--json", "--csv", str(csv)]) == 0
    table = json.loads(capsys.readouterr().out)["tables"][-1]
    assert table["title"] == "What the answers give away"
    rows = {row["run"]: row for row in table["rows"]}
    assert rows["open"]["membership AUC"] == "0.810" and rows["open"]["attacker"] == "A1"
    assert rows["closed"]["attack"] == "not measured"
    assert rows["open"]["tensors"] == rows["closed"]["tensors"]
    assert "leakage/membership_auc/A1" in csv.read_text().splitlines()[0]
