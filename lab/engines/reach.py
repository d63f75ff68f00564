"""Connect from a node to a host, and send a word; write the problem if there is one: reach.py HOST PORT WORD FILE.

A task of an engine runs this file. It needs only the standard library, so it starts without delay.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

SECONDS = 10.0


def main(host: str, port: str, word: str, file: str) -> None:
    try:
        with socket.create_connection((host, int(port)), SECONDS) as sock:
            sock.sendall(word.encode())
        return
    except OSError as error:
        problem = error.strerror or str(error)
    result = Path(file)
    partial = result.with_name(f"{result.name}.{os.getpid()}")
    partial.write_text(json.dumps({"node": socket.gethostname(), "problem": problem}))
    partial.replace(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
