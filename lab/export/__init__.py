"""A model of a run as files that anybody can run, without protofleet.

May import: coordinator.models, coordinator.observe, edge_client.*, methods.*, protocol.*, runtime.*.
"""
