"""Attacks on real processes: devices that send any bytes, brokers that were taken over.

A coordinator and devices are the real programs, behind a Mosquitto with certificates and access rules. They are
forked from a process that has imported them (tests/support/forked_program.py), or only the packages of others for a
program with a planted fault or another clock. On a small disk, each starts as from a shell.
`wire` and `device` are written from docs/protocol.md and import nothing of the project, so what our own sender would
never say is as easy to say as anything else. `federation` starts everybody; `proxy` is the broker that was taken
over. Every fault that came over the wire has a scenario here; a new one begins as a scenario.
"""
