"""The parts that check what devices do and claim: limits, bans, last wills, class names.

May import: coordinator.spool, methods.contract, protocol.*, runtime.
"""
