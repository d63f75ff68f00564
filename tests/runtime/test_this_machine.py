"""Tests of the description of the machine that a process reports."""

import os
import platform

import pytest

from protofleet.runtime.host import machine as this_machine
from protofleet.runtime.host.machine import machine_words, plain, software_words

JETSON = {
    "BOARD": "NVIDIA Jetson Nano; \x00Developer Kit\x00",
    "MEMORY": "MemFree: 1 kB\nMemTotal:        4059344 kB\n",
    "CPU": "processor : 0\nmodel name : ARMv8 Processor rev 1 (v8l)\n",
}
SERVER = {
    "MEMORY": "MemTotal: 131000000 kB\n",
    "CPU": "model name\t: AMD EPYC 7B13\nmodel name\t: AMD EPYC 7B13\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [(JETSON, "4 GB, NVIDIA Jetson Nano Developer Kit"), (SERVER, "134 GB, AMD EPYC 7B13"), ({}, "")],
)
def test_a_machine_is_described_by_its_board_or_its_processor_if_known(
    tmp_path, monkeypatch, files, expected
):
    for name in ("BOARD", "MEMORY", "CPU"):
        (tmp_path / name).write_text(files[name]) if name in files else None
        monkeypatch.setattr(this_machine, name, tmp_path / name)
    monkeypatch.setattr(this_machine, "GPUS", "no/such/*/file")
    known = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    assert machine_words() == ", ".join(filter(None, [known, expected]))


def test_the_description_of_a_machine_is_short_and_has_no_semicolon():
    assert len(machine_words()) <= 160 and ";" not in machine_words() + software_words("0.1.0")
    assert plain("a;\x1b[1m\nb\x00é ") == "a [1m b"
    assert software_words("0.1.0").startswith(f"protofleet 0.1.0, Python {platform.python_version()}")
