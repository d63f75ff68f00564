"""The device: its agent, the work on a question, its settings, its process.

May import: edge_client.*, methods.contract, methods.nets, methods.parts, methods.plugins, protocol.*, runtime.*.
"""
