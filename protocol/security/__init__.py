"""Identity: keys and their files, signed and sealed envelopes, records and settings that a root has signed.

May import: protocol.wire, protocol.storage.
"""
