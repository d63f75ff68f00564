"""Programs that run with the code of the tree that is measured. Each measures something itself, and prints JSON."""
