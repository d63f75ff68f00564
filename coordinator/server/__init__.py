"""The server half, which runs step by step, and the search for updates that make the server half fail.

May import: coordinator.robust, coordinator.round, coordinator.secagg, coordinator.spool, methods.contract,
methods.plugins, protocol, protocol.settings, protocol.wire, runtime.
"""
