"""What the machine under a process is, and how it fares.

May import: protocol.*, runtime.
"""
