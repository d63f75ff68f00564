"""What survives a crash: durable steps, atomic replacement of files, and a store of objects under their hashes.

May import: protocol.wire.
"""
