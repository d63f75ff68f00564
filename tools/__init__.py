"""Build tools of the repository, which no wheel contains. They may import every room; no room imports them."""
