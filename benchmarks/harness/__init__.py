"""The harness: it runs measures with this tree and with another tree in turn, and compares the figures."""
