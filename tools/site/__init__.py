"""Build the documentation site: the pages of docs/, the public Python API and the commands."""
