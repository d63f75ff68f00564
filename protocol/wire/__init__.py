"""The bytes of the wire: messages, their codec, arrays, blocks, topics, names and reasons.

This package does not do input or output, and does not read a clock.

May import: nothing of ours.
"""
