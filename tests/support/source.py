"""`python -m tests.support.source TEXT` runs TEXT: a child process whose program is written in the test."""

import sys

if __name__ == "__main__":
    exec(sys.argv.pop(1))
