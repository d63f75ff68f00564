"""Secure aggregation: fixed-point numbers, masks, shares of secrets, rosters and signatures. All functions are pure.

May import: protocol.security, protocol.wire.
"""
