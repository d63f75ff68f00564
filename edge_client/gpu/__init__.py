"""Devices that share a GPU: what one of them takes is measured, and others are admitted by that.

May import: methods.contract.
"""
