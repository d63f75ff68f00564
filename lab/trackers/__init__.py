"""Trackers, which send a run's numbers from rounds.jsonl to TensorBoard, MLflow or the tracker of another package.

May import: coordinator.observe, lab.report, methods.plugins, protocol.*, runtime.installation.
"""
