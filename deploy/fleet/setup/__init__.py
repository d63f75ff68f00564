"""How a fleet begins: its file, its root and its pace, and whose host keys are believed.

May import: coordinator, coordinator.round, deploy, deploy.enrol, deploy.fleet, deploy.fleet.device, edge_client.data,
methods.contract, protocol.*.
"""
