"""Trackers, which send a run's numbers from rounds.jsonl to TensorBoard, MLflow or a tracker of a package.

May import: coordinator.observe, lab.report, methods.plugins, protocol.*, runtime.installation.
"""
