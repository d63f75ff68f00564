"""The stack in containers: what its folder holds, and docker compose.

May import: everything.
"""
