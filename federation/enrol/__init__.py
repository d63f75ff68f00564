"""Keys and certificates: the operator's root, requests, approvals, revocations.

May import: federation.brokers, protocol.*, runtime.command.
"""
