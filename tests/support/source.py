"""`python -m tests.support.source TEXT`: a child whose program stands in the test that starts it."""

import sys

if __name__ == "__main__":
    exec(sys.argv.pop(1))
