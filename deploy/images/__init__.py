"""Container images: what they are made of, the build, what they weigh.

May import: protocol.security, protocol.settings, runtime.*.
"""
