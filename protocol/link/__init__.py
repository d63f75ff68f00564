"""The conversation between two parties: messages, transfers in blocks, duplicates, limits and byte counts.

May import: protocol.wire, protocol.storage, protocol.security, protocol.transport.
"""
