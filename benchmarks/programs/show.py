"""`python -m benchmarks.programs.show NAME ['{"argument": ...}']`: prints the result of `measure` as JSON.

NAME is the name of a program in this folder.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module


def main(name: str, arguments: str = "{}") -> None:
    print(json.dumps(import_module(f"benchmarks.programs.{name}").measure(**json.loads(arguments))))


if __name__ == "__main__":
    main(*sys.argv[1:])
