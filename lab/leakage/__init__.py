"""Measurements of what a coordinator can learn of a device from the device's answers.

May import: methods.contract, protocol.wire.
"""
