"""`python -m benchmarks.programs.show NAME ['{"argument": ...}']`: what this program's `measure` gives, as JSON."""

from __future__ import annotations

import json
import sys
from importlib import import_module


def main(name: str, arguments: str = "{}") -> None:
    print(json.dumps(import_module(f"benchmarks.programs.{name}").measure(**json.loads(arguments))))


if __name__ == "__main__":
    main(*sys.argv[1:])
