"""Whole federations at a real Mosquitto."""
