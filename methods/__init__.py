"""The methods, one file for each paper, with both halves of the method; there are no other files here.

May import: methods.*, protocol.settings.
"""
