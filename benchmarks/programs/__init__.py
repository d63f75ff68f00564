"""Programs that run with the code of the measured tree; each measures something itself, and prints JSON."""
