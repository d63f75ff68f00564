"""Facts of the machine under a process: its hardware, load and temperatures.

May import: protocol.*, runtime.
"""
