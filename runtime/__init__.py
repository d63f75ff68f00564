"""What both programs run on: event loop, health, metrics page, credentials, log lines, processes that they start.

May import: methods.plugins, protocol.*.
"""
