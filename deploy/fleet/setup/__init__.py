"""How a fleet begins: its file, its root and its pace, and whose host keys are believed.

May import: coordinator, coordinator.round, deploy.fleet, deploy.fleet.device, edge_client.data,
federation.enrol, methods.contract, protocol.settings, protocol.wire, runtime.command.
"""
