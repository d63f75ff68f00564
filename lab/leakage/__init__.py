"""Measurements of what a coordinator can learn of a device from the device's answers.

May import: coordinator.spool, edge_client, edge_client.data, edge_client.state, edge_client.trainer, lab.api,
lab.leakage.attacks, lab.leakage.maths, lab.local, lab.report, methods.contract, methods.parts, methods.plugins,
methods.served, protocol.coding, protocol.settings, protocol.storage, protocol.wire, runtime.command.
"""
