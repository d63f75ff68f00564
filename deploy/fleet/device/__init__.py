"""What runs on a device while it is deployed to, and what it tells: facts, checks of signatures, its unit.

May import: deploy.fleet, edge_client.*, methods.contract, protocol.*.
"""
