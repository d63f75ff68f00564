"""Code arrays: write the same numbers, or nearly the same numbers, in fewer bytes. All functions are pure.

May import: protocol.settings, protocol.wire.
"""
