"""The text of an experiment file with two devices; the run ends within a second."""

from typing import Final

TWO: Final = """
name = "two"
rounds = 1
method = { name = "fedavg" }
data = { source = "digits", samples = 20, size = 8 }
devices = { clients = { optdigits = 2 } }
network = { name = "mlp" }
"""
