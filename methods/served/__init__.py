"""Trained models outside their run: their input, their rule of prediction, and a card that describes both.

May import: methods.contract, methods.nets, methods.parts, methods.plugins, protocol.settings.
"""
