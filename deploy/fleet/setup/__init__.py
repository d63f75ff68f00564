"""How a fleet begins: its file and its root, and whose host keys are believed.

May import: deploy, deploy.enrol, deploy.fleet, deploy.fleet.device, edge_client.data, protocol.*.
"""
