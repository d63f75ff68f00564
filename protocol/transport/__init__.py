"""Frames in, frames out, by MQTT or in memory: connection, queues, TLS. Only mqtt.py knows paho.

May import: protocol.security, protocol.settings.
"""
