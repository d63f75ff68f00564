"""What both sides agree on, from bytes to conversations. No torch; each part of it is a room of its own.

May import: nothing of ours.
"""
