"""Claims of devices, and the trust in them: limits, bans, last wills, departures, class names.

May import: coordinator.spool, methods.contract, protocol.*, runtime.
"""
