"""Bytes of wire version 1, kept for ever: what was once sent must always be understood.

`wire_1.json` holds each vector as readable content and as hex; nothing in it is ever changed. To add vectors,
add cases to `cases.py` and say `python -m tests.protocol.golden`, which appends what is not there yet.
"""
