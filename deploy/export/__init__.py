"""A model of a run as files that anybody can run, without protofleet.

May import: deploy, coordinator.models, coordinator.observe, edge_client, edge_client.data,
edge_client.data.images, edge_client.trainer, methods.*, protocol.*, runtime.
"""
