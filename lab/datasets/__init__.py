"""Public data sets: their addresses and licences, and functions that download and unpack them.

May import: edge_client.*, protocol.*, runtime.*.
"""
