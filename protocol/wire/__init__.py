"""The bytes of the wire: messages, their codec, arrays, blocks, topics, names and reasons.

This package does no input or output, and reads no clock.

May import: nothing of ours.
"""
