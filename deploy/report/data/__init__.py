"""What devices have to learn from: how many samples of which class, as a picture, a table and one number.

May import: deploy, deploy.report, protocol.*.
"""
