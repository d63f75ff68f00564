"""Commands for what is the user's own: models out, plug-ins in.

May import: everything.
"""
