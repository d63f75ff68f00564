"""Hosts over SSH: plans, their execution, waves behind a canary, and the way back.

May import: coordinator, deploy, deploy.brokers, deploy.enrol, deploy.fleet.device, deploy.locks,
deploy.fleet.setup, edge_client.*, methods.plugins, protocol.*, runtime.
"""
