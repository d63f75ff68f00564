"""Measurements of what a coordinator can learn of a device from the device's answers.

May import: edge_client.data, lab.api, lab.leakage.attacks, lab.leakage.maths, lab.local, methods.contract,
methods.nets, methods.parts, protocol.settings, protocol.wire.
"""
