"""Write the lock files in runtime/locks, and look up known vulnerabilities of the locked packages."""
