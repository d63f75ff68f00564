"""Run exported files in another process, where protofleet cannot be imported, and compare the scores."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from protofleet.lab.export.formats import FILES, INPUT, ONNX, SAFETENSORS
from protofleet.methods.nets.weights_file import read_weights
from protofleet.methods.served.card import Card, sha256_of_tensors
from protofleet.methods.served.served import Served
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime import children
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.installation.extras import install_hint

SAMPLES: Final = 7
MOST_DIFFERENCE: Final = 1e-5  # Maximum difference between scores, relative to the largest score.
SECONDS: Final = 600.0
Scores = np.ndarray


def require_check(formats: Sequence[str]) -> None:
    if ONNX in formats and importlib.util.find_spec("onnxruntime") is None:
        raise SettingsError(
            f"checking ONNX takes the package onnxruntime: {install_hint('export')}; or leave --check out"
        )


def check_files(
    folder: Path, model: Served, card: Card, formats: Sequence[str], say: Callable[[str], None]
) -> Mapping[str, float]:
    """Compare the scores of the files with those of the model, and return the differences.

    RunError is raised if a file gives other scores than the model. The export is then not kept.
    """
    samples = card.input.drawn(SAMPLES)
    with torch.no_grad():
        scores = model(samples).numpy()
    files = [FILES[name] for name in formats]
    if SAFETENSORS in formats:
        files.remove(FILES[SAFETENSORS])
        _check_tensors(folder / FILES[SAFETENSORS], card)
    answers = _answers(folder, files, samples.numpy())
    found = {}
    for file, given in answers.items():
        found[file] = difference(given, scores)
        if found[file] > MOST_DIFFERENCE or not same_labels(given, scores):
            raise RunError(
                f"{file} does not answer as the model does: its scores differ by {found[file]:.1e} of the largest, "
                f"at most {MOST_DIFFERENCE:.0e} is right; nothing is written"
            )
        say(f"{file}: {SAMPLES} samples, the same classes, scores within {found[file]:.1e}")
    return found


def _check_tensors(path: Path, card: Card) -> None:
    if sha256_of_tensors(read_weights(path)) != card.tensors:
        raise RunError(f"{path.name} has not the model's tensors; nothing is written")


def difference(given: Scores, wanted: Scores) -> float:
    """Return the largest difference, relative to the largest score.

    A class without a prototype has no finite score in either array.
    """
    finite = np.isfinite(wanted)
    if given.shape != wanted.shape or not np.array_equal(finite, np.isfinite(given)):
        return float("inf")
    largest = float(np.abs(wanted[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(given[finite] - wanted[finite]).max(initial=0.0)) / largest


def same_labels(given: Scores, wanted: Scores) -> bool:
    return bool(np.array_equal(given.argmax(1), wanted.argmax(1)))


def _answers(folder: Path, files: Sequence[str], samples: Scores) -> Mapping[str, Scores]:
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        np.save(place / "samples.npy", samples)
        order = {"folder": str(folder.resolve()), "files": list(files), "out": made, "input": INPUT}
        ran = subprocess.run(
            children.script(Path(__file__).with_name("answer.py"), json.dumps(order)),
            capture_output=True, text=True, timeout=SECONDS, cwd=made, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if ran.returncode != 0:
            last = ran.stderr.strip().splitlines()[-1:] or [f"exit code {ran.returncode}"]
            raise RunError(f"the exported files cannot be run: {last[0][:300]}; nothing is written")
        return {
            path.name.removesuffix(".npy"): np.load(path) for path in sorted((place / "scores").iterdir())
        }
