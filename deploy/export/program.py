"""predict.py: the shortest program that uses an exported model, for people to begin with. It needs no protofleet."""

from __future__ import annotations

from typing import Final

from protofleet.deploy.export.formats import FILES, INPUT, ONNX, PT2, TORCHSCRIPT
from protofleet.methods.served.card import Card

PICTURE: Final = """\
x = np.asarray(Image.open(sys.argv[1]).convert("{mode}").resize(({width}, {height})), np.float32)
x = x.reshape({height}, {width}, {channels}).transpose(2, 0, 1)[None]
"""
ARRAY: Final = """\
x = np.load(sys.argv[1]).astype(np.float32).reshape(1, {shape})  # as it is stored, a .npy file
"""
BY_ONNX: Final = """\
scores = onnxruntime.InferenceSession(here / "{file}").run(None, {{"{name}": x}})[0]
"""
BY_PT2: Final = """\
scores = torch.export.load(here / "{file}").module()(torch.from_numpy(x.copy()))
"""
BY_TORCHSCRIPT: Final = """\
scores = torch.jit.load(here / "{file}")(torch.from_numpy(x.copy()))
"""
IMPORTS: Final = {ONNX: "onnxruntime", PT2: "torch", TORCHSCRIPT: "torch"}
RUNS: Final = {ONNX: BY_ONNX, PT2: BY_PT2, TORCHSCRIPT: BY_TORCHSCRIPT}
NOTHING_TO_RUN: Final = """\
# model.safetensors holds numbers alone. With protofleet: protofleet.load_model(FOLDER). A file that runs by itself:
# protofleet export RUN --format onnx pt2 torchscript
"""


def program_for(card: Card, formats: tuple[str, ...]) -> str:
    form = next((name for name in (ONNX, PT2, TORCHSCRIPT) if name in formats), None)
    if form is None:
        return NOTHING_TO_RUN
    shape, picture = card.input.shape, card.input.kind == "image" and card.input.shape[0] in (1, 3)
    packages = ", ".join(["numpy", *(["pillow"] if picture else []), IMPORTS[form]])
    what = "PICTURE" if picture else "SAMPLE.npy"
    head = f"# python predict.py {what}: the name of its class. It takes {packages}.\n"
    imports = ["import json, pathlib, sys", "import numpy as np", f"import {IMPORTS[form]}"]
    imports += ["from PIL import Image"] if picture else []
    lines = [*imports, "", "here = pathlib.Path(__file__).parent"]
    if picture:
        mode = "RGB" if shape[0] == 3 else "L"
        read = PICTURE.format(mode=mode, channels=shape[0], height=shape[1], width=shape[2])
    else:
        read = ARRAY.format(shape=", ".join(map(str, shape)))
    run = RUNS[form].format(file=FILES[form], name=INPUT)
    answer = 'print(json.load(open(here / "card.json"))["classes"][int(scores.argmax())])\n'
    return head + "\n".join(lines) + "\n" + read + run + answer
