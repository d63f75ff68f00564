"""Public data sets: where they are published, under which licence, fetched and unpacked for their readers.

May import: edge_client.*, protocol.*, runtime.*.
"""
