"""The packages that are installed, by version and hash, and their known vulnerabilities.

May import: nothing of ours.
"""
