"""Run exported files in a process that cannot import protofleet, and compare their scores with the model's."""

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
            f"--check of an ONNX file needs the package onnxruntime: {install_hint('export')}; or leave out --check"
        )


def check_files(
    folder: Path, model: Served, card: Card, formats: Sequence[str], say: Callable[[str], None]
) -> Mapping[str, float]:
    """Compare the scores of the files with the model's scores, and return the differences.

    If the scores of a file differ too much from the model's scores, a RunError is raised, and the export is not kept.
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
                f"{file} and the model give different scores: the difference is {found[file]:.1e} of the largest "
                f"score, and the limit is {MOST_DIFFERENCE:.0e}; nothing is written"
            )
        say(f"{file}: {SAMPLES} samples, the same classes, scores within {found[file]:.1e}")
    return found


def _check_tensors(path: Path, card: Card) -> None:
    if sha256_of_tensors(read_weights(path)) != card.tensors:
        raise RunError(f"the tensors in {path.name} differ from the tensors of the model; nothing is written")


def difference(given: Scores, wanted: Scores) -> float:
    """Return the largest difference between a given and a wanted score, divided by the largest wanted score.

    A class without a prototype has an infinite score. This score must be infinite in both arrays.
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
