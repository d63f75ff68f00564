"""Exports of a run's model, as files that run without protofleet.

May import: coordinator.models, coordinator.observe, edge_client.*, methods.*, protocol.*, runtime.*.
"""
