"""Keys and certificates: the operator's root, and its requests, approvals and revocations.

May import: federation.brokers, protocol.*, runtime.command.
"""
