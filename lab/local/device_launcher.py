"""Load the data that devices share, and fork the device processes.

`python -m protofleet.lab.local.device_launcher DATA ...` starts this program. DATA is the table `data` of a
device as JSON. Ten devices with the same test set then share one copy of the test set in memory.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import LOADED_BEFORE_FORK
from protofleet.protocol.settings.reader import decode, encode
from protofleet.runtime.children import Program, Starter
from protofleet.runtime.launcher import STANDARD_INPUT, ForkedLauncher, Launcher
from protofleet.runtime.launcher_process import fork_on_request, share_memory

PROGRAM: Final = "protofleet.lab.local.device_launcher"


@contextlib.contextmanager
def starter_of_devices(
    starter: Starter, data: Mapping[str, DataSettings], processes: int
) -> Iterator[Starter]:
    """Yield a starter whose process has loaded the shared data, if several processes are forked.

    Otherwise yield the given starter.
    """
    if processes < 2 or not isinstance(starter, Launcher):
        yield starter
        return
    common = {json.dumps(encode(replace(settings, part=0))) for settings in data.values()}
    with ForkedLauncher(starter, Program("device launcher", PROGRAM, sorted(common))) as launcher:
        yield launcher


def main(arguments: Sequence[str]) -> None:
    for text in arguments:
        # An error is ignored here, because each device loads the data again and logs the error.
        with contextlib.suppress(Exception):
            LOADED_BEFORE_FORK.load_common(decode(DataSettings, json.loads(text)))
    share_memory()
    fork_on_request(socket.socket(fileno=STANDARD_INPUT))


if __name__ == "__main__":
    main(sys.argv[1:])
