"""The rules of a round: they turn events into commands without sockets, threads, clocks, files or tensors.

May import: protocol.secagg, protocol.settings, protocol.wire.
"""
