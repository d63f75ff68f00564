"""Grafana's dashboards, written from here into deploy/compose.

May import: nothing of ours.
"""
