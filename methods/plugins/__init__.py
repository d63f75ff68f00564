"""Plug-ins: methods, networks, data and metrics of other authors. A hash identifies each plug-in.

May import: protocol, protocol.settings.
"""
