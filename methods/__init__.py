"""One file a paper, with both halves of the method; nothing else lies here.

May import: methods.*, protocol.settings.
"""
