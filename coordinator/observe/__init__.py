"""Observers of a run, which decide nothing: journal, rounds.jsonl, summary, metrics.

May import: coordinator.*, methods.contract, methods.parts, methods.served, protocol.*, runtime.*.
"""
