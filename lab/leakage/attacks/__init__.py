"""Attacks on the answers of a device, chosen by the kinds of arrays that an answer has.

May import: edge_client.data, lab.leakage, lab.leakage.maths, methods.contract, methods.maths, methods.nets,
methods.parts, protocol.wire.
"""
