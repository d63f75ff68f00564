"""What devices say of themselves and how far that is believed: limits, bans, doubts, departures, class names.

May import: coordinator.spool, methods.contract, protocol.*, runtime.
"""
