"""Keys and certificates: the operator's root, requests, approvals, revocations.

May import: deploy, deploy.brokers, protocol.*.
"""
