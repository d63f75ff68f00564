"""A run with few test images has a warning at its end and in its report."""

import json

import pytest

from protofleet.lab.report.run_page import final_table, write_report
from tests.lab.report.finished import whole_run


def run_of(folder, experiment, devices=("mnist", "street")):
    whole_run(folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary["devices"] = {f"d{i}": {"domain": domain, "examples": 9} for i, domain in enumerate(devices)}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "experiment.toml").write_text(experiment)
    return folder


def test_domains_with_few_test_images_are_named_at_the_end_and_in_the_report(tmp_path):
    folder = run_of(tmp_path, 'name = "demo"\n')
    words = "ested on few samples, and one more that is right changes much: street 8"
    assert f"\nt{words}" in final_table(folder)
    assert f'<p class="danger">T{words}.</p>' in write_report(folder).read_text()


@pytest.mark.parametrize(
    ("data", "words"),
    [("", "mnist 10, street 8"), ("own_test = 0.2", ": street 8"), ('split = "dirichlet"', ": street 8")],
)
def test_images_that_several_devices_share_are_counted_once(tmp_path, data, words):
    folder = run_of(tmp_path, f"[data]\n{data}\n", ["mnist", "mnist", "street"])
    assert final_table(folder).count(words) == 1


def test_no_domain_is_named_if_the_number_of_test_images_is_not_known(tmp_path):
    folder = run_of(tmp_path, "")
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seal"]
        line["confusion"] = {}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "few samples" not in final_table(folder)
