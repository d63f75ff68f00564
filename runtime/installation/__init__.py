"""The installed program: its checkout or wheel, its version, its extras and the digest of its sources.

May import: runtime.command.
"""
