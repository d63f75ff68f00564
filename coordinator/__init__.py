"""The coordinator's process and service: it decodes, times and performs what the round's rules decide.

May import: coordinator.*, methods.contract, methods.plugins, protocol.*, runtime, runtime.host.
"""
