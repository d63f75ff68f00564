"""Parts of a command line that every package uses: errors with exit codes, arguments, lists.

May import: protocol.settings, protocol.wire.
"""
