"""Build tools of the repository, which no wheel has. They may import every room; no room imports them."""
