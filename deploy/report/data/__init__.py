"""Training data of the devices: the number of samples of each class, as a picture, a table and one number.

May import: deploy, deploy.report, protocol.*.
"""
