"""The agreement of both sides, from bytes to conversations. It needs no torch; each part is a room.

May import: nothing of ours.
"""
