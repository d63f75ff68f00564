"""Brokers: a broker for this machine alone, and the settings and access rules of Mosquitto and RabbitMQ.

May import: protocol.transport, protocol.wire, runtime, runtime.installation.
"""
