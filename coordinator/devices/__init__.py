"""The parts that judge the claims of devices and the trust in devices: limits, bans, last wills, class names.

May import: coordinator.spool, methods.contract, protocol.*, runtime.
"""
