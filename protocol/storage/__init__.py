"""Storage that survives a crash: durable steps, atomic replacement of files, a store of objects by their hashes.

May import: protocol.wire.
"""
