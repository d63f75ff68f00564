"""What outlasts a crash: steps that become durable, and a store of objects under their hashes.

May import: protocol.wire.
"""
