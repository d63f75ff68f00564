"""The bytes of the wire: messages, their codec, arrays, blocks, topics, names and reasons. No I/O, no keys, no clock.

May import: nothing of ours.
"""
