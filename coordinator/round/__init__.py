"""The rules of a round, pure: events in, commands out. No sockets, threads, clocks, files or tensors.

May import: protocol.settings, protocol.wire.
"""
