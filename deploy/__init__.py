"""Deploy a federation to an operator's hosts: fleets over SSH, container images, the compose stack.

May import: nothing of ours.
"""
