"""Write models to files in a folder, and let another process without protofleet compute the scores of each."""

import subprocess
import sys

import numpy as np
import torch

from protofleet.lab.export.formats import FILES, encoded

ANSWER = """
import json, pathlib, sys
sys.modules["protofleet"] = None
import numpy as np, onnxruntime, torch
folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("*.npy")):
    x = np.load(path)
    for file in sorted(folder.glob(path.stem + ".model.*")):
        if file.suffix == ".onnx":
            net = onnxruntime.InferenceSession(file)
            found = [net.run(None, {"samples": one})[0] for one in (x, x[:1])]
        else:
            load = torch.jit.load(file) if file.suffix == ".pt" else torch.export.load(file).module()
            with torch.no_grad():
                found = [load(torch.from_numpy(one)).numpy() for one in (x, x[:1].copy())]
        np.savez(folder / (file.name + ".scores.npz"), seven=found[0], one=found[1])
"""


def answers_of(cases, folder, seconds):
    """Return, for each file, the scores of the model and the scores that the other process gets from the file.

    A case is a name, a model, its card and the forms to write.
    """
    wanted = {}
    for name, model, card, forms in cases:
        x = card.input.drawn(7, seed=3)
        np.save(folder / f"{name}.npy", x.numpy())
        with torch.no_grad():
            scores = model(x).numpy()
        for form in forms:
            file = f"{name}.{FILES[form]}"
            (folder / file).write_bytes(encoded(form, model, card))
            wanted[file] = scores
    subprocess.run([sys.executable, "-I", "-c", ANSWER, str(folder)], check=True, timeout=seconds)
    return {file: (scores, np.load(folder / f"{file}.scores.npz")) for file, scores in wanted.items()}
