"""Programs that run with the code of the measured tree. Each program measures something and prints JSON."""
