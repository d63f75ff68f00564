"""The models that a device serves: whole versions in a folder, links that name them, and who is told of a change.

May import: methods.contract, methods.served, protocol.*.
"""
