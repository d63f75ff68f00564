"""The process of the coordinator: it decodes messages, and carries out what the rules of a round decide.

May import: coordinator.*, methods.contract, methods.plugins, protocol.*, runtime, runtime.command, runtime.host.
"""
