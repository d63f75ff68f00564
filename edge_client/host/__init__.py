"""The machine around a device: sensors, systemd, a status file, loaded settings and remote overrides.

May import: edge_client, methods.plugins, protocol.*.
"""
