"""Coded arrays: fewer bytes for the same numbers, or for nearly the same. Pure functions between arrays and bytes.

May import: protocol.settings, protocol.wire.
"""
