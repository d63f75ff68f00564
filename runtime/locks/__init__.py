"""The packages that are installed, by version and hash.

May import: nothing of ours.
"""
