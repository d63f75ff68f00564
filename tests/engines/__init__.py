"""Engines that are installed apart from this project: brokers that are clusters."""
