"""`run --page` prints the address of a live page, and its port is not part of the experiment."""

import json
import re
import socket
import subprocess
import urllib.request

import pytest

from protofleet.lab.local.experiment import read_experiment, recorded
from protofleet.lab.local.run import same_settings
from protofleet.protocol.settings.reader import write_toml
from tests.lab.local.test_run import command, furnished, protofleet

SOON = 10.0


def test_a_run_with_another_page_port_is_continued(tmp_path):
    file = furnished(tmp_path) / "small.toml"
    with_page, without = read_experiment(file, ["page_port=8470"]), read_experiment(file, [])
    (tmp_path / "experiment.toml").write_text(write_toml(recorded(without)))
    assert same_settings(tmp_path / "experiment.toml", with_page)
    assert recorded(with_page) == recorded(without)


@pytest.mark.slow
def test_a_run_with_a_page_prints_its_address_and_serves_it_until_the_end(tmp_path):
    place = furnished(tmp_path)
    words = command("run", "small.toml", "--page", "--set", "rounds=40")
    found: dict[str, object] = {}
    with subprocess.Popen(
        words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if match := re.fullmatch(r"page (http://127\.0\.0\.1:\d+/)#c=([\w-]{32})\n", line):
                found["url"] = match[1]
            if line.startswith("round 1 of 40, train took"):
                with urllib.request.urlopen(f"{found['url']}now", timeout=SOON) as told:
                    found["now"] = json.load(told)
                with urllib.request.urlopen(str(found["url"]), timeout=SOON) as told:
                    found["html"] = told.read()
    assert run.returncode == 0
    assert found["now"]["runs"][0]["run"] == "small" and found["now"]["runs"][0]["planned"] == 40
    assert {row["name"] for row in found["now"]["runs"][0]["devices"]} == {"device-1", "device-2", "device-3"}
    assert b"<script>" in found["html"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(str(found["url"]), timeout=SOON)


@pytest.mark.slow
def test_several_runs_and_a_sweep_have_one_page_address(tmp_path):
    place, more = furnished(tmp_path), ("--page", "--set", "rounds=1", "--set", "data.validation=0.2")
    for words in (
        ("run", "small.toml", "--seeds", "1", "2"),
        ("sweep", "small.toml", "--grid", "method.lr=0.01,0.02"),
    ):
        done = protofleet(*words, *more, cwd=place)
        assert done.returncode == 0, done.stdout + done.stderr
        pages = re.findall(r"(?m)^page (\S+)#c=(\S+)$", done.stdout)
        assert len(pages) == 2 and len({url for url, _ in pages}) == 1, done.stdout


@pytest.mark.slow
def test_a_page_port_that_is_in_use_ends_the_run_with_one_line(tmp_path):
    place = furnished(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = protofleet("run", "small.toml", "--set", f"page_port={port}", cwd=place)
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert (
        f"page_port {port} cannot be used (Address already in use); set page_port to another port"
        in done.stderr
    )
