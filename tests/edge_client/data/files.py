"""Write small files in the published form of data sets, and pictures that a test can recognise."""

import bz2
import struct
from pathlib import Path

import numpy as np
from PIL import Image


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an IDX file: a magic number, the sizes as big-endian numbers, and the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def write_mnist(folder: Path, train: int, test: int) -> None:
    for i, (split, n) in enumerate((("train", train), ("t10k", test))):
        images = np.random.default_rng(i).integers(0, 256, (n, 28, 28), np.uint8)
        write_idx(folder / f"{split}-images-idx3-ubyte", images)
        write_idx(folder / f"{split}-labels-idx1-ubyte", np.arange(n) % 10)


def write_usps(path: Path, values: np.ndarray, labels: np.ndarray) -> None:
    """Write a USPS file with lines of `label index:value ...`, where labels begin at 1."""
    lines = [
        f"{label + 1} {' '.join(f'{i}:{value:.4f}' for i, value in enumerate(row, 1))} \n"
        for row, label in zip(values, labels, strict=True)
    ]
    path.write_bytes(bz2.compress("".join(lines).encode()))


def write_svhn(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    from scipy.io import savemat

    ten_for_zero = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    savemat(path, {"X": images.transpose(1, 2, 3, 0), "y": ten_for_zero}, do_compression=True)


def write_class_folders(folder: Path, counts: dict[str, int]) -> None:
    """Write a folder of pictures for each class; picture i of class c has the colour (c, i, 0)."""
    for c, (name, n) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            Image.new("RGB", (16, 12), (c, i, 0)).save(folder / name / f"{i:04}.png")


def colours(part) -> list[tuple[int, int, int]]:
    """Return the colours of plain pictures, computed from the normalised pixels of a part."""
    middle = part.x[:, :, part.x.shape[2] // 2, part.x.shape[3] // 2]
    return [tuple(colour) for colour in ((middle + 1) * 127.5).round().int().tolist()]
