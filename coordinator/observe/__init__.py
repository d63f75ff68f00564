"""The observers of a run: journal, rounds.jsonl, summary, metrics. They do not make decisions.

May import: coordinator.*, methods.contract, methods.parts, methods.served, protocol.*, runtime.*.
"""
