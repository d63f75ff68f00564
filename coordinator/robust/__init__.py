"""The rules against lying devices: they replace the updates of a phase by one update with a robust mean.

May import: coordinator.round, methods.contract, methods.parts, protocol.settings, protocol.wire.
"""
