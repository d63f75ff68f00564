"""The training of a device, in the agent's process or in a child process, with a time limit.

May import: edge_client, edge_client.data, edge_client.data.inbox, edge_client.gpu, edge_client.serving,
methods.contract, methods.nets, methods.parts, methods.plugins, methods.served, protocol.*, runtime.
"""
