"""Read addresses and checksums of data sets from the source code of the installed torchvision.

torchvision is not imported, because the import takes seconds and fails if torchvision was built for another
version of torch.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.edge_client.data.errors import DataError

PACKAGE: Final = "torchvision"
WAY_OUT: Final = "install its newest release, or put the files there by hand"


@dataclass(frozen=True)
class RemoteFile:
    name: str
    addresses: tuple[str, ...]  # Addresses of the file. They are tried one after the other until one works.
    md5: str


@dataclass(frozen=True)
class Published:
    """The files of a data set. If the only file is an archive, the files in the archive are also listed."""

    files: tuple[RemoteFile, ...]
    folder: str = ""  # The folder that the archive contains; "" if there is no archive.
    members: tuple[tuple[str, str], ...] = ()  # Names and MD5 checksums of the files in that folder.


def mirrored(module: str, cls: str) -> Published:
    """Read a data set whose list has the form of MNIST: some files, and several mirrors with all files."""
    listed = ListedClass(module, cls)
    mirrors, resources = listed["mirrors"], listed["resources"]
    return Published(
        tuple(RemoteFile(n, tuple(mirror + n for mirror in mirrors), md5) for n, md5 in resources)
    )


def split(module: str, cls: str) -> Published:
    """Read torchvision's list of a data set such as SVHN or USPS, which has one file for each part.

    Only the training part and the test part are used.
    """
    parts = ListedClass(module, cls)["split_list"]
    found = [parts[part] for part in ("train", "test")]
    return Published(tuple(RemoteFile(name, (address,), md5) for address, name, md5 in found))


def archived(module: str, cls: str) -> Published:
    """Read torchvision's list of a data set such as CIFAR: one archive, and the names of its files."""
    listed = ListedClass(module, cls)
    meta = listed["meta"]
    members = [*listed["train_list"], *listed["test_list"], [meta["filename"], meta["md5"]]]
    archive = RemoteFile(listed["filename"], (listed["url"],), listed["tgz_md5"])
    return Published((archive,), listed["base_folder"], tuple((name, md5) for name, md5 in members))


class ListedClass:
    """The names and values that are assigned in the body of a class of torchvision.datasets."""

    def __init__(self, module: str, cls: str) -> None:
        self._what = f"{PACKAGE}.datasets.{module}.{cls}"
        path = source_of(module)
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{path} cannot be read ({error}); {WAY_OUT}") from None
        bodies = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls]
        self._values = {name: value for body in bodies for name, value in assigned(body)}

    def __getitem__(self, name: str) -> Any:
        try:
            return ast.literal_eval(self._values[name])
        except (KeyError, ValueError):
            raise DataError(f"the installed {self._what} has no value for {name}; {WAY_OUT}") from None


def assigned(body: list[ast.stmt]) -> list[tuple[str, ast.expr]]:
    found: list[tuple[str, ast.expr]] = []
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                found.append((name, value))
            case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                found.append((name, value))
    return found


def source_of(module: str) -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / "datasets" / f"{module}.py").is_file():
            return path
    raise DataError(
        f"the addresses of data sets are read from {PACKAGE}, but datasets/{module}.py is not installed; {WAY_OUT}"
    )
