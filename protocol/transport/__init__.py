"""The transport of frames: connections, queues and TLS. Only mqtt.py and stream.py use the MQTT library paho.

May import: protocol, protocol.security, protocol.settings.
"""
