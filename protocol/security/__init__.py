"""The identity of parties: keys and their files, signed and sealed messages, statements that a root has signed.

May import: protocol, protocol.wire, protocol.storage.
"""
