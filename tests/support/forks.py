"""`python -m tests.support.forks TEXT` runs TEXT, which a test gives, and then forks children on request."""

import socket
import sys

from protofleet.runtime.launcher import STANDARD_INPUT
from protofleet.runtime.launcher_process import fork_on_request

if __name__ == "__main__":
    exec(sys.argv[1])
    fork_on_request(socket.socket(fileno=STANDARD_INPUT))
