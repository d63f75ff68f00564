"""The program of a device: its agent, its settings, and the training and evaluation for a task.

May import: edge_client.*, methods.contract, methods.nets, methods.parts, methods.plugins, protocol.*, runtime.*.
"""
