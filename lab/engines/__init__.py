"""Engines that run the tasks of a job on other nodes, such as Slurm: submit a job, watch its tasks, cancel it.

May import: federation.brokers, protocol.settings, protocol.storage, runtime, runtime.command, runtime.installation.
"""
