"""A comparison for spreadsheets, LaTeX and programs has the page's tables, and no name is a LaTeX command."""

import csv
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from statistics import mean, stdev

import pytest

from protofleet.cli.main import main
from protofleet.lab.report.comparison_page import table_section
from protofleet.lab.report.comparison_tables import Table
from protofleet.lab.report.latex import as_latex, latex_table, latex_text
from protofleet.lab.report.numbers import NONE, percent_points
from tests.lab.report.test_compare import runs

__all__ = ["runs"]  # a fixture
CELL = re.compile(r"(?<!\\)&")
BOLD = re.compile(r"\\textbf\{(.*)\}")


@pytest.fixture
def written(runs, tmp_path, capsys):
    files = {name: tmp_path / f"both.{name}" for name in ("html", "latex", "csv")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    assert main(["compare", *map(str, runs), "--json", *options]) == 0
    return {"json": json.loads(capsys.readouterr().out), **{k: p.read_text() for k, p in files.items()}}


class Page(HTMLParser):
    """A parser of a page's tables: `tables` has each caption with its rows of (text, whether it is bold)."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.path = {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.path.append(tag)
        if tag == "caption":
            self.rows = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append(["", False])

    def handle_endtag(self, tag):
        while self.path and self.path.pop() != tag:
            pass

    def handle_data(self, data):
        if "caption" in self.path:
            self.tables[data] = self.rows
        elif {"td", "th"} & set(self.path):
            self.rows[-1][-1][0] += data
            self.rows[-1][-1][1] |= bool({"b", "strong"} & set(self.path))


def plain(cell):
    if cell == "--":
        return NONE
    text = cell.replace(r"\,$\pm$\,", " ± ").replace(r"$\pm$", "±").replace(r"\textgreater{}", ">")
    return re.sub(r"\\([%&#_$])", r"\1", text)


def tables_in_latex(text):
    for block in re.findall(r"\\begin\{table\}.*?\\end\{table\}", text, re.DOTALL):
        rows = [line.removesuffix(r" \\") for line in block.splitlines() if line.endswith(r" \\")]
        found = []
        for row in rows:
            cells = [cell.strip() for cell in CELL.split(row)]
            bold = [BOLD.fullmatch(cell) for cell in cells]
            found.append([[plain(b[1] if b else c), bool(b)] for b, c in zip(bold, cells, strict=True)])
        yield plain(re.search(r"\\caption\{(.*)\}", block)[1]), found


def test_latex_and_json_have_the_tables_of_the_page_with_the_best_in_bold(written):
    page = Page(written["html"]).tables
    latex = dict(tables_in_latex(written["latex"]))
    assert list(latex) == [table["title"] for table in written["json"]["tables"]]
    assert sum(bold for rows in latex.values() for row in rows for _, bold in row) >= 4
    for table in written["json"]["tables"]:
        head, *rows = latex[table["title"]]
        assert [dict(zip([h for h, _ in head], [c for c, _ in row], strict=True)) for row in rows] == table[
            "rows"
        ]
        shown = page[table["title"]]
        assert [[text for text, _ in row] for row in shown] == [
            [text for text, _ in row] for row in (head, *rows)
        ]
        assert [[bold for _, bold in row] for row in shown[1:]] == [[bold for _, bold in row] for row in rows]


def test_csv_has_one_line_for_each_run_with_the_values_behind_the_tables(written):
    rows = list(csv.DictReader(written["csv"].splitlines()))
    assert [row["run"] for row in rows] == ["avg-s1", "avg-s2", "avg-s3", "proto"]
    average = [row for row in rows if row["experiment"] == "avg"]
    finals = [float(row["final/accuracy/global/mean"]) for row in average]
    table = written["json"]["tables"][0]["rows"][0]
    assert table["mean"] == f"{percent_points(mean(finals))} ± {percent_points(stdev(finals))}"
    assert {row["final/accuracy/global/mean"] for row in rows if row["experiment"] == "proto"} == {""}
    assert float(rows[3]["final/accuracy/personal/mnist"]) == pytest.approx(0.7)
    assert {row["total/payload/up/sum"] for row in average} == {"400"}
    assert [rows[3]["to_target/rounds"], rows[3]["to_target/bytes"]] == ["2", str(2 * (10 + 40))]


def test_csv_has_the_planned_rounds_and_the_completed_rounds_of_a_diverged_run(runs, tmp_path, capsys):
    lines = (runs[0] / "rounds.jsonl").read_text().splitlines(keepends=True)
    (runs[0] / "rounds.jsonl").write_text("".join(lines[:2]))
    summary = json.loads((runs[0] / "summary.json").read_text())
    (runs[0] / "summary.json").write_text(json.dumps({**summary, "ended": "diverged: a loss is not finite"}))
    assert main(["compare", *map(str, runs[:2]), "--csv", str(tmp_path / "runs.csv")]) == 0
    rows = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert [(row["rounds"], row["rounds_done"]) for row in rows] == [("4", "2"), ("4", "4")]


def test_latex_markdown_and_the_page_explain_bold_values_in_the_same_words():
    """The global model and a device's own model are not compared, so each view has its own best in a column."""
    rows = [["a", "global", "50"], ["b", "global", "60"], ["c", "personal", "90"], ["d", "personal", "80"]]
    views = Table("Accuracy", "A note.", ["run", "view", "mean"], rows, frozenset({(1, 2), (2, 2)}))
    said = "A note. In each column, bold marks the best value of each view."
    assert said in latex_table(views) and said in table_section(views)
    assert views.markdown().endswith(f"\n\n{said}\n")
    alone = Table("Bytes", "", ["run", "up"], [["a", "1"], ["b", "2"]], frozenset({(0, 1)}))
    assert "In each column, bold marks the best value." in latex_table(alone)
    assert alone.markdown().endswith("\n\nIn each column, bold marks the best value.\n")
    plain_table = replace(alone, best=frozenset())
    assert "best" not in as_latex([plain_table]) + plain_table.markdown()


def test_special_characters_in_names_are_escaped_in_latex():
    odd = ["a_b&c", "100%", "{x}$y#", "\\input", "~^", "<|>", "[2]", "*"]
    text = latex_table(Table("Odd_names", "50 % ± 1", ["run", *["h_1"] * 7], [odd], frozenset({(0, 1)})))
    row = next(line for line in text.splitlines() if line.startswith("a"))
    assert row == (
        r"a\_b\&c & \textbf{100\%} & \{x\}\$y\# & \textbackslash{}input & \textasciitilde{}\textasciicircum{} & "
        r"\textless{}\textbar{}\textgreater{} & {[}2] & {*} \\"
    )
    assert r"\caption{Odd\_names}" in text and r"50 \% $\pm$ 1" in text and r"\label{tab:odd-names}" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 2


@pytest.mark.parametrize(("name", "latex"), [
    ("Zürich", r'Z\"{u}rich'), ("Zu\u0308rich", r'Z\"{u}rich'), ("\u0142\u00f3d\u017a", r"\l{}\'{o}d\'{z}"),
    ("na\u00efve", r'na\"{\i}ve'), ("\u03b1-run \u0394", r"$\alpha$-run $\Delta$"), ("a--b", "a-{}-b"),
    ("a\u2013b", r"a\textendash{}b"), ("it''s", "it'{}'s"), ("\u2265 5", r"$\geq$ 5"),
    ("\u6f22\u5b57", r"\texttt{U+6F22}\texttt{U+5B57}"), ("\U0001f680", r"\texttt{U+1F680}"),
    ("a\tb\x07", r"a b\texttt{U+0007}"),
])  # fmt: skip
def test_letters_that_a_latex_engine_may_lack_are_written_as_commands_or_code_points(name, latex):
    assert latex_text(name) == latex


@pytest.fixture
def compiled(tmp_path):
    latex = next(
        (found for name in ("pdflatex", "lualatex", "tectonic") if (found := shutil.which(name))), None
    )
    if latex is None:
        pytest.skip("there is no LaTeX here; what it would be given is checked above")

    def log_of(tables):
        page = rf"\documentclass{{article}}\usepackage{{booktabs,graphicx}}\begin{{document}}{tables}\end{{document}}"
        (tmp_path / "page.tex").write_text(page)
        options = (
            []
            if latex.endswith("tectonic")
            else ["-halt-on-error", "-file-line-error", "-interaction=nonstopmode"]
        )
        done = subprocess.run(
            [latex, *options, "page.tex"], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0 and (tmp_path / "page.pdf").exists(), done.stdout
        return done.stdout

    return log_of


def test_latex_tables_of_unusual_names_and_many_domains_compile_and_fit_on_the_page(compiled):
    odd = ["[a_b&c", "100%", "{x}$y#", "\\input", "~^", "<|>", "*", "ü ± 1"]
    latin = "".join(map(chr, range(0x20, 0x2000)))
    unlikely = [latin[i : i + 12] for i in range(0, len(latin), 12)][:40] + [
        "\u6f22\u5b57",
        "\U0001f680",
        "a\u0301",
    ]
    log = compiled(as_latex([
        Table("Odd_names", "50 %", ["run", *["h_1"] * 7], [odd, odd], frozenset({(0, 1)})),
        Table("Letters, %", "\u03b1 & \u2265", ["run", "mean"], [[name, NONE] for name in unlikely]),
        Table("Wide", "", ["run", *["mnist"] * 12], [["digits-fedproto-lr-0.05", *["77.0 ± 1.0"] * 12]]),
    ]))  # fmt: skip
    wide = [line for line in log.splitlines() if line.startswith("Overfull \\hbox")]
    assert not wide and "Missing character" not in log, log
