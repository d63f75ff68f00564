"""Byte vectors of wire version 1: each party must always be able to read these messages.

`wire_1.json` contains each vector as readable content and as hex. No vector is ever changed. To add vectors, add
cases to `cases.py` and run `python -m tests.protocol.golden`, which appends the vectors of new cases.
"""
