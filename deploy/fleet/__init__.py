"""Hosts over SSH: plans, their execution, waves behind a canary, and the way back.

May import: coordinator, deploy.fleet.device, deploy.fleet.setup, edge_client.*, federation.brokers,
federation.enrol, methods.plugins, protocol.*, runtime.*.
"""
