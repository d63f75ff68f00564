"""A run's numbers to TensorBoard or MLflow, out of its rounds.jsonl: its parties import nothing of them.

May import: coordinator.observe, deploy, deploy.report, protocol.*.
"""
