"""Deployment over SSH: plans, their execution, waves after a canary wave, and the rollback.

May import: coordinator, coordinator.queue, deploy.fleet.device, deploy.fleet.setup, edge_client.*,
federation.brokers, federation.enrol, methods.plugins, protocol.*, runtime.*.
"""
