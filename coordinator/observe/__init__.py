"""What watches a run and decides nothing: journal, rounds.jsonl, ledger, summary, metrics.

May import: coordinator.*, methods.contract, methods.parts, protocol.*, runtime.
"""
