"""The connection of a device to its machine: sensors, systemd, the status file, settings files and overrides.

May import: edge_client, methods.plugins, protocol.*.
"""
