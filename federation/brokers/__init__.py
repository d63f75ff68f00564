"""A broker for local clients, and the settings and access rules of Mosquitto, RabbitMQ and ejabberd.

May import: protocol.settings, protocol.transport, protocol.wire, runtime, runtime.installation.
"""
