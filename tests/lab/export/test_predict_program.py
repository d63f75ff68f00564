"""predict.py of an export is short to read, and reports each mistake of its user with one line and exit code 2."""

import os
import re
import runpy
import struct
import sys
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from protofleet.lab.export.formats import FILES, encoded
from protofleet.lab.export.program import program_for
from protofleet.methods.served.scaling import Input
from tests.methods.served.trained import model_of


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a folder with two exports, one for small pictures and one for series, and with inputs for them.

    The export for series has a program but no model.
    """
    folder = tmp_path_factory.mktemp("exported")
    model, card = model_of("fedavg", "predict")
    for name, given in (("pictures", card), ("series", replace(card, input=Input((6, 16))))):
        (folder / name).mkdir()
        (folder / name / "predict.py").write_text(program_for(given, ("torchscript",)))
        (folder / name / "card.json").write_text(given.text())
    (folder / "pictures" / FILES["torchscript"]).write_bytes(encoded("torchscript", model, card))
    Image.new("RGB", (20, 9)).save(folder / "wide.png")
    (folder / "deep.pgm").write_bytes(b"Pf 2 2 -1 " + bytes(16))
    Image.new("L", (20, 9)).save(folder / "small.tif")
    (folder / "notes.jpg").write_bytes(b"\xff\xd8" + b"Exif\0\0" * 9)
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n half")
    (folder / "words.txt").write_text("no picture")
    (folder / "postscript.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    os.mkfifo(folder / "pipe.png")
    for name, size in {
        "tall": (1, 80_000_000),
        "many": (10_000, 10_001),
    }.items():  # nothing of them is decoded
        (folder / f"{name}.png").write_bytes(png_that_claims(*size))
    np.save(folder / "turned.npy", np.zeros((16, 6)))
    np.save(folder / "nan.npy", np.full((6, 16), np.nan))
    return folder


def png_that_claims(width, height):
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = (head, b"IDAT" + zlib.compress(b"\0"), b"IEND")
    rows = [struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) for body in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(rows)


def said(capsys, monkeypatch, program, *arguments):
    monkeypatch.setattr(sys, "argv", ["predict.py", *map(str, arguments)])
    try:
        runpy.run_path(str(program / "predict.py"), run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    return code, out, err


def test_the_program_prints_the_name_of_a_class(exported, capsys, monkeypatch):
    code, out, err = said(capsys, monkeypatch, exported / "pictures", exported / "wide.png")
    assert (code, err) == (0, "") and re.fullmatch(r"[0-2]\n", out)


def test_the_program_reads_the_same_picture_from_16_bits_as_from_8_bits(exported, monkeypatch):
    shades = np.random.default_rng(0).integers(0, 256, (9, 20), np.uint8)
    Image.fromarray(shades).save(exported / "8.png")
    Image.fromarray(shades.astype(np.uint16) * 257).save(exported / "16.png")
    opened = runpy.run_path(str(exported / "pictures" / "predict.py"))["opened"]
    eight, sixteen = (np.asarray(opened(exported / f"{bits}.png").convert("RGB")) for bits in (8, 16))
    assert np.array_equal(eight, sixteen) and len(np.unique(eight)) > 20


MISTAKES = [
    ("pictures", (), "say python predict.py PICTURE"),
    ("series", (), "say python predict.py SAMPLE.npy"),
    ("pictures", ("wide.png", "wide.png"), "say python predict.py PICTURE"),
    ("pictures", ("gone.png",), r"there is no file \S+gone.png"),
    ("pictures", (".",), r"\S+: it is no regular file"),
    ("pictures", ("words.txt",), r"\S+words.txt: it is none of BMP, .*; save it as a PNG"),
    ("pictures", ("broken.png",), r"\S+broken.png: .+"),
    (
        "pictures",
        ("postscript.png",),
        r"\S+postscript.png: it is none of BMP, .*; save it as a PNG",
    ),
    ("pictures", ("pipe.png",), r"\S+pipe.png: it is no regular file"),
    (
        "pictures",
        ("tall.png",),
        r"\S+tall.png: it has 1 x 80000000 pixels, too many to decode; save it smaller",
    ),
    ("pictures", ("many.png",), r"\S+: it has 10000 x 10001 pixels, too many to decode; save it smaller"),
    ("pictures", ("small.tif",), r"\S+small.tif: it is none of .*; save it as a PNG"),
    ("pictures", ("notes.jpg",), r"\S+notes.jpg: it has more than 8 notes of a camera .*"),
    ("pictures", ("deep.pgm",), r"\S+deep.pgm: it has 32 bits a pixel; save it with 8 or 16"),
    ("series", ("words.txt",), r"\S+words.txt: .+"),
    (
        "series",
        ("turned.npy",),
        r"\S+turned.npy: it is \[16, 6\], and the model takes \[6, 16\] of finite numbers",
    ),
    ("series", ("nan.npy",), r"\S+nan.npy: it is \[6, 16\], and the model takes \[6, 16\] of finite numbers"),
]


@pytest.mark.parametrize("program, files, words", MISTAKES)
def test_a_mistake_gives_one_line_and_exit_code_2(exported, capsys, monkeypatch, program, files, words):
    code, out, err = said(capsys, monkeypatch, exported / program, *(exported / file for file in files))
    assert (code, out) == (2, "") and re.fullmatch(f"predict.py: {words}\n", err), err


@pytest.mark.parametrize("package", ["torch", "numpy", "PIL"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(exported, capsys, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = said(capsys, monkeypatch, exported / "pictures", exported / "wide.png")
    assert code == 2 and err.startswith("predict.py: ") and err.count("\n") == 1
    assert package in err and err.endswith("pip install numpy pillow torch\n")


def test_the_program_and_its_function_predict_are_short(exported):
    for program in ("pictures", "series"):
        text = (exported / program / "predict.py").read_text()
        (core,) = re.findall(r"^def predict\(path\):\n((?:    .*\n|\n)+?)\n\n", text, re.MULTILINE)
        assert len([line for line in core.splitlines() if line.strip() and "import" not in line]) <= 5
        assert len(text.splitlines()) <= 64 and "protofleet" not in text
