"""Plug-ins: methods, networks, data and metrics of other authors, in a file or an installed package, by hash.

May import: protocol.settings.
"""
