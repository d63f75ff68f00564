"""The API of `import protofleet`: runs, comparisons and models for scripts and notebooks, a simulation for tests.

May import: coordinator.server, edge_client.*, federation.brokers, lab.export, lab.local,
lab.local.display, lab.report, lab.trackers, methods.*, protocol.*, runtime.command.
"""
