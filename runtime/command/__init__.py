"""Parts of a command line that every package uses: errors with exit codes, arguments, lists.

May import: protocol, protocol.settings, protocol.storage, protocol.wire.
"""
