"""The coordinator's part of secure aggregation: the steps of one attempt, and the sum at their end.

May import: coordinator.round, methods.contract, protocol.link, protocol.privacy, protocol.secagg, protocol.security,
protocol.settings, protocol.wire.
"""
