"""The harness, which runs measures with this tree and another tree in turn and compares the figures."""
