"""The machine of a process: its hardware, load and temperatures.

May import: protocol.*, runtime.
"""
