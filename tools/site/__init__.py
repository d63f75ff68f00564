"""Build the documentation site from the pages of docs/, the public Python API and the commands."""
