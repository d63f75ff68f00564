"""The observers of a run, which make no decision: journal, rounds.jsonl, summary, metrics.

May import: coordinator.*, methods.contract, methods.parts, methods.served, protocol.*, runtime.*.
"""
