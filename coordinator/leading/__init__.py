"""One coordinator: look before the claim, take over, step down, and look again after a cut.

May import: protocol.*, runtime, runtime.command.
"""
