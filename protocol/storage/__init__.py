"""Storage that survives a crash: durable steps, atomic replacement of files, and a store of hashed objects.

May import: protocol, protocol.wire.
"""
