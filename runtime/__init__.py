"""The base of both programs: event loop, health, metrics page, credentials, log lines, child processes.

May import: methods.plugins, protocol.*.
"""
