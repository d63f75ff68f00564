"""The harness: it takes measures of this tree and of another tree in turn, and compares the figures."""
