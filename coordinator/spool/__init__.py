"""The files that survive a coordinator (snapshots, updates, index), and the detection of older copies of a folder.

May import: coordinator.round, methods.contract, methods.parts, protocol.*.
"""
