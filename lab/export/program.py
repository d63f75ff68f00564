"""Write predict.py, the shortest program that uses an exported model.

It is a starting point for the user's own program, and it does not need protofleet.
"""

from __future__ import annotations

from typing import Final

from protofleet.edge_client.data.images.picture import (
    DECODERS,
    EXIF,
    FORMATS,
    MOST_MEMORY,
    MOST_NOTES,
    MOST_PIXELS,
)
from protofleet.edge_client.data.plain_file import MOST_BYTES
from protofleet.lab.export.formats import FILES, INPUT, ONNX, PT2, TORCHSCRIPT
from protofleet.methods.served.card import Card

PICTURE: Final = """\
    x = np.asarray(opened(path).convert("{mode}").resize(({width}, {height})), np.float32)
    x = x.reshape({height}, {width}, {channels}).transpose(2, 0, 1)[None]
"""
# The checks in this program are the checks of `read_picture`: only regular files, only some formats, and limits on
# the size before anything is decoded. TIFF is not accepted, because a check of its tables would be longer than the
# rest of the program.
OPENED: Final = """\


def opened(path):
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    found = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for ever
    if not stat.S_ISREG(os.fstat(found).st_mode):
        raise ValueError("it is no regular file")
    with open(found, "rb") as file:
        content = file.read({bytes} + 1)
    if content[:2] == b"\\xff\\xd8" and content.count({exif!r}) > {notes}:
        raise ValueError("it has more than {notes} notes of a camera (EXIF); save it without them")
    formats = {formats}  # none of them starts another program
    try:
        image = Image.open(io.BytesIO(content), formats=formats)
    except UnidentifiedImageError:
        raise ValueError(f"it is none of {{', '.join(formats)}}; save it as a PNG") from None
    if image.mode in ("I", "F"):
        raise ValueError("it has 32 bits a pixel; save it with 8 or 16")
    pixels = image.width * image.height
    memory = pixels * ((4 if image.mode == "RGB" else 8) + {decoders}.get(image.format, 0))
    memory += 4 * {width} * image.height  # Pillow resizes the rows first
    if pixels > {pixels} or memory > {memory} or len(content) > {bytes}:
        size = f"{{image.width}} x {{image.height}}"
        raise ValueError(f"it has {{size}} pixels, too many to decode; save it smaller")
    if not image.mode.startswith("I;16"):
        return image
    grey = Image.new("L", image.size)  # Pillow would convert pixels of 16 bits to white
    for top in range(0, image.height, 64):
        rows = np.asarray(image.crop((0, top, image.width, min(top + 64, image.height))), np.uint32)
        grey.paste(Image.fromarray(((rows + 128) // 257).astype(np.uint8)), (0, top))
    return grey
"""
ARRAY: Final = """\
    x = np.load(path).astype(np.float32)[None]  # as it is stored, a .npy file
    if x.shape != (1, {shape}) or not np.isfinite(x).all():
        raise ValueError(f"it is {{list(x.shape[1:])}}, and the model takes [{shape}] of finite numbers")
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
ANSWER: Final = """\
    return json.load(open(here / "card.json"))["classes"][int(scores.argmax())]
"""
# For a mistake of the user, the program prints one line and exits with code 2, as `protofleet predict` does.
MAIN: Final = """\


def main():
    if len(sys.argv) != 2:
        return "say python predict.py {what}"
    if not pathlib.Path(sys.argv[1]).exists():
        return f"there is no file {{sys.argv[1]}}"
    try:
        print(predict(sys.argv[1]))
    except ImportError as error:
        return f"{{error}}: pip install {packages}"
    except Exception as error:
        return f"{{sys.argv[1]}}: {{str(error).partition(chr(10))[0]}}"


if __name__ == "__main__" and (problem := main()):
    print("predict.py:", problem, file=sys.stderr)
    sys.exit(2)
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
    picture = card.input.kind == "image" and card.input.shape[0] in (1, 3)
    packages = ["numpy", *(["pillow"] if picture else []), IMPORTS[form]]
    modules = sorted(["json", "pathlib", "sys", *(["io", "os", "stat"] if picture else [])])
    what = "PICTURE" if picture else "SAMPLE.npy"
    return "".join(
        [
            f"# python predict.py {what}: the name of its class. It takes {', '.join(packages)}.\n",
            f"import {', '.join(modules)}\n\nhere = pathlib.Path(__file__).parent\n\n\n",
            "def predict(path):\n",
            f"    import numpy as np, {IMPORTS[form]}\n",
            "\n",
            _read(card, picture),
            RUNS[form].format(file=FILES[form], name=INPUT),
            ANSWER,
            _opened(card) if picture else "",
            MAIN.format(what=what, packages=" ".join(packages)),
        ]
    )


def _opened(card: Card) -> str:
    formats = [form for form in FORMATS if form != "TIFF"]
    return OPENED.format(
        bytes=MOST_BYTES, pixels=MOST_PIXELS, memory=MOST_MEMORY, formats=formats, exif=EXIF, notes=MOST_NOTES,
        decoders=DECODERS, width=card.input.shape[2],
    )  # fmt: skip


def _read(card: Card, picture: bool) -> str:
    shape = card.input.shape
    if not picture:
        return ARRAY.format(shape=", ".join(map(str, shape)))
    mode = "RGB" if shape[0] == 3 else "L"
    return PICTURE.format(mode=mode, channels=shape[0], height=shape[1], width=shape[2])
