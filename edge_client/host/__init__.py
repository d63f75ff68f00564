"""The machine of a device: sensors, systemd, the status file, loaded settings and remote overrides.

May import: edge_client, methods.plugins, protocol.*.
"""
