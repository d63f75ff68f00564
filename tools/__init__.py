"""Build tools of the repository. No wheel contains them. They may import all packages; no package imports them."""
