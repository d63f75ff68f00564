"""Helpers for tests of several rooms: small federations, liars, brokers that lie, certificates."""
