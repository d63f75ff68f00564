"""Run exported files and save their scores. This program imports nothing of protofleet."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

warnings.simplefilter("ignore")
sys.modules["protofleet"] = None  # type: ignore[assignment]  # an import of protofleet fails


def scores(path: Path, name: str, samples: Any) -> Any:
    if path.suffix == ".onnx":
        import onnxruntime

        return onnxruntime.InferenceSession(path).run(None, {name: samples})[0]
    import torch

    load = torch.jit.load if ".torchscript" in path.name else lambda file: torch.export.load(file).module()
    with torch.no_grad():
        return load(path)(torch.from_numpy(samples)).numpy()


def main(order: dict[str, Any]) -> None:
    folder, out = Path(order["folder"]), Path(order["out"])
    samples = np.load(out / "samples.npy")
    (out / "scores").mkdir()
    for file in order["files"]:
        np.save(out / "scores" / f"{file}.npy", scores(folder / file, order["input"], samples))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
