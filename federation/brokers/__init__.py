"""A broker for local clients, and the settings and access rules of Mosquitto and RabbitMQ.

May import: protocol.transport, protocol.wire, runtime, runtime.installation.
"""
