"""Attacks on real processes: devices that send arbitrary bytes, and brokers that were taken over.

A coordinator and devices are the real programs, behind a Mosquitto with certificates and access rules. They are
forked from a process that has imported them (tests/support/forked_program.py), or only the packages of others for a
program with a planted fault or another clock. On a small disk, each starts as from a shell.
`wire` and `device` are written from docs/protocol.md and import nothing of the project, so they can easily send
messages that the product would never send. `federation` starts all parties; `proxy` is the broker that was taken
over. Each fault that arrived over the wire has a scenario here. For a new fault, write the scenario first.
"""
