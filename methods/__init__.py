"""The federated methods: one file for each paper, which has the server half and the client half of the method.

May import: methods.*, protocol.settings.
"""
