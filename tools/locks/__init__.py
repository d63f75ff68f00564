"""Write the locks of runtime/locks, and look up known vulnerabilities of the locked packages."""
