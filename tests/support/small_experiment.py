"""An experiment of two devices that is over in a second, as a file has it."""

from typing import Final

TWO: Final = """
name = "two"
rounds = 1
method = { name = "fedavg" }
data = { source = "digits", samples = 20, size = 8 }
devices = { clients = { optdigits = 2 } }
network = { name = "mlp" }
"""
