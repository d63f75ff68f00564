"""Brokers: one for this machine alone, and the rules that Mosquitto and RabbitMQ are told.

May import: protocol.*, runtime.
"""
