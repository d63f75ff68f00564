"""Settings: the strict reader of TOML files, and the bounds of all numbers.

May import: protocol.
"""
