"""Training of a device: in its own process or in a child, with a time limit for both.

May import: edge_client, edge_client.data, edge_client.data.inbox, edge_client.gpu, edge_client.serving,
methods.contract, methods.parts, methods.plugins, methods.served, protocol.*, runtime.
"""
