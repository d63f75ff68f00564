"""The setup of a fleet: its file, its root, the pace of its rounds, and the host keys that are trusted.

May import: coordinator, coordinator.robust, coordinator.round, deploy.fleet, deploy.fleet.device, edge_client.data,
federation.enrol, methods.contract, protocol.security, protocol.settings, protocol.wire, runtime.command.
"""
