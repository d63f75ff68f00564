"""A run's numbers to TensorBoard, MLflow or a package's tracker, from rounds.jsonl: its parties import none of them.

May import: coordinator.observe, lab.report, methods.plugins, protocol.*, runtime.installation.
"""
