"""What is known about the installed program: its checkout or wheel, version, extras and digest of sources.

May import: runtime.command.
"""
