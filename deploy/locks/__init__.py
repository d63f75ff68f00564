"""The packages that are installed, by version and hash, and known weaknesses of them.

May import: nothing of ours.
"""
