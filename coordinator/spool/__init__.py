"""The files that survive a coordinator: snapshots, accepted updates, their index, and older copies of them.

May import: coordinator.round, methods.contract, protocol.*.
"""
