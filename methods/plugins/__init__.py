"""What others wrote: methods, networks, data and metrics in a file of their own or an installed package, by hash.

May import: protocol.settings.
"""
