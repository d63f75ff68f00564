"""Container images: their contents, their build, and their sizes.

May import: protocol.security, protocol.settings, runtime.*.
"""
