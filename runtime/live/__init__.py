"""The server of a live page: a document, a snapshot as JSON, and a stream of events.

May import: protocol.*, runtime.
"""
