"""Devices over SSH: plans, their execution, waves behind a canary, and the way back.

May import: deploy, deploy.enrol, deploy.fleet.device, deploy.locks, edge_client.*, protocol.*, runtime.
"""
