"""The device's part of secure aggregation: the answers of one attempt, and the book that survives a reboot.

May import: protocol.secagg, protocol.security.
"""
