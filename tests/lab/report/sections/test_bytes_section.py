"""The table of bytes has the bytes before coding, and the factor, only for a run with a codec."""

import re

from protofleet.lab.report.sections.bytes import bytes_table

SUMMARY = {
    "payload": {"up": {"weights": 400}, "down": {}},
    "wire": {"up": {"weights": 400, "control": 90}, "down": {"control": 60}},
}


def cells(summary):
    rows = re.findall(r"<tr>(.*?)</tr>", bytes_table(summary), re.S)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


def test_the_table_of_a_run_with_a_codec_has_the_bytes_before_coding_and_the_factor():
    uncoded = {"up": {"weights": 4_200}, "down": {"weights": 1_000}}
    head, *rows = cells({**SUMMARY, "uncoded": uncoded})
    assert head == ["what crossed", "tensor bytes", "before the codec", "factor", "bytes on the wire"]
    assert rows == [
        ["up: control", "0", "0", "-", "90"],
        ["up: weights", "400", "4,200", "10.5", "400"],
        ["down: control", "0", "0", "-", "60"],
        ["down: weights", "0", "1,000", "-", "0"],
    ]


def test_the_table_of_a_run_without_a_codec_has_only_the_sent_bytes():
    plain = cells(SUMMARY)
    assert plain == cells({**SUMMARY, "uncoded": {}})
    assert plain[0] == ["what crossed", "tensor bytes", "bytes on the wire"]
