"""What survives a coordinator: snapshots, accepted answers, the index over them, and older copies of it all.

May import: coordinator.round, methods.contract, protocol.*.
"""
