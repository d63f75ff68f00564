"""What devices claim, and how far that is trusted: limits, bans, last wills, departures, class names.

May import: coordinator.spool, methods.contract, protocol.*, runtime.
"""
