"""A trained model as others have it: what it takes, how it predicts, and a card that says so.

May import: methods.contract, methods.nets, methods.parts, methods.plugins, protocol.settings.
"""
