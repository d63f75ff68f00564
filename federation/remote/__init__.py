"""The commands of an operator, sent to a coordinator through the broker.

May import: federation.enrol, protocol.*, runtime, runtime.command.
"""
