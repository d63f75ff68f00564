"""The parts that both local experiments and real fleets use: keys, brokers, and the exit codes of all programs.

May import: coordinator.moving, coordinator.server, coordinator.spool, edge_client.data, edge_client.state,
methods.plugins, protocol.*, runtime, runtime.command.
"""
