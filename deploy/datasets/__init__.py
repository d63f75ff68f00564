"""Public data sets: where they are published, under which licence, fetched and unpacked for their readers.

May import: deploy, deploy.locks, edge_client.data, edge_client.data.*, protocol.*, runtime.
"""
